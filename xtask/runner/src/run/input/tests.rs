//! Files that are not what they say: each is an error that names what is wrong, and no panic.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

/// A file with this header, and so many bytes after it.
fn file(folder: &TempDir, name: &str, header: &str, data: usize) -> PathBuf {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0x40);
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn error(path: PathBuf) -> String {
    format!("{:#}", Inputs::open(&[path]).unwrap_err())
}

#[test]
fn malformed_files_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        // Less than there should be, and more.
        (
            r#"{"x":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]}}"#,
            15,
            "damaged",
        ),
        (
            r#"{"x":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]}}"#,
            17,
            "damaged",
        ),
        // Bytes that are not the shape's.
        (
            r#"{"x":{"dtype":"BF16","shape":[2,5],"data_offsets":[0,16]}}"#,
            16,
            "tensor x: BF16 [2, 5] takes 20 bytes",
        ),
        (
            r#"{"x":{"dtype":"BF16","shape":[2,4],"data_offsets":[16,0]}}"#,
            16,
            "tensor x",
        ),
        // Two tensors in one place, and a hole.
        (
            r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}"#,
            12,
            "tensor `b`: it overlaps another",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[12,16]}}"#,
            16,
            "leaves a gap",
        ),
        // Sizes beyond everything.
        (
            r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}"#,
            16,
            "tensor x: shape [4294967296, 4294967296] overflows",
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
            4,
            "tensor x: invalid value",
        ),
        (
            r#"{"x":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#,
            4,
            "F31",
        ),
        (r#"{"x":7}"#, 0, "tensor x"),
        (r#"{"x":"#, 0, "EOF"),
        ("[]", 0, "no safetensors file"),
        ("", 0, "no safetensors file"),
    ];
    for (header, data, says) in cases {
        let told = error(file(&folder, "bad.safetensors", header, data));
        assert!(
            told.contains("bad.safetensors") && told.contains(says),
            "{header}: {told}"
        );
    }
}

#[test]
fn headers_that_lie_about_their_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.safetensors");
    for bytes in [
        &[][..],
        &[1, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0, b'{'],
        &[0xff; 8],
        &[0xff; 64],
    ] {
        fs::write(&path, bytes).unwrap();
        let told = error(path.clone());
        assert!(told.contains("no safetensors file"), "{told}");
    }
    // A huge one of which nothing is there, in a file that has no blocks.
    let sparse = fs::File::create(&path).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(error(path.clone()).contains("no safetensors file"));
    fs::write(&path, (1u64 << 39).to_le_bytes()).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    assert!(error(path).contains("the most"));
}

/// Whatever bytes a header has, opening it returns.
#[test]
fn no_header_panics() {
    let folder = tempfile::tempdir().unwrap();
    let good = r#"{"x":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]},"y":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}"#;
    let mut opened = 0;
    for round in 0..600u64 {
        let mut bytes = good.as_bytes().to_vec();
        for change in 0..1 + round % 3 {
            let bits = mok::fill::hash(round, change);
            let at = bits as usize % bytes.len();
            match bits >> 61 {
                0..3 => bytes[at] = (bits >> 32) as u8,
                3..6 => bytes[at] = b"0123456789-[]{},:\"eE."[(bits >> 32) as usize % 21],
                6 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        let path = folder.path().join("x.safetensors");
        let mut all = (bytes.len() as u64).to_le_bytes().to_vec();
        all.extend(bytes);
        all.extend([0x40; 24]);
        fs::write(&path, all).unwrap();
        if let Ok(inputs) = Inputs::open(&[path]) {
            opened += 1;
            for name in ["x", "y"] {
                if let Some(tensor) = inputs.tensor(name).unwrap() {
                    let _ = (
                        tensor.f32(0, 4),
                        tensor.bf16(usize::MAX, 4),
                        tensor.i64(0, usize::MAX),
                    );
                }
            }
        }
    }
    assert!(
        (1..600).contains(&opened),
        "{opened}: good and bad ones were tried"
    );
}

#[test]
fn folders_and_lists() {
    let folder = tempfile::tempdir().unwrap();
    let path = || folder.path().to_owned();
    assert!(error(path()).contains("holds no .safetensors file"));
    assert!(error(path().join("none")).contains("opening"));
    let tensor =
        |name: &str| format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    file(&folder, "a.safetensors", &tensor("x"), 4);
    file(&folder, "b.safetensors", &tensor("y"), 4);
    let inputs = Inputs::open(&[path()]).unwrap();
    assert_eq!(
        inputs.tensor("y").unwrap().unwrap().f32(0, 1).unwrap(),
        [f32::from_bits(0x4040_4040)]
    );
    assert!(inputs.tensor("z").unwrap().is_none());
    file(&folder, "c.safetensors", &tensor("y"), 4);
    assert!(error(path()).contains("y is in"));
    // A list is all that counts where there is one, and its parts are opened when needed.
    let list =
        |map: &str| fs::write(path().join(INDEX), format!(r#"{{"weight_map":{map}}}"#)).unwrap();
    list(r#"{"x":"a.safetensors","z":"b.safetensors","w":"gone.safetensors"}"#);
    let inputs = Inputs::open(&[path()]).unwrap();
    assert!(inputs.tensor("x").unwrap().is_some() && inputs.tensor("y").unwrap().is_none());
    let told = inputs.tensor("z").unwrap_err().to_string();
    assert!(told.contains("no such tensor"), "{told}");
    assert!(inputs.tensor("w").unwrap_err().to_string().contains("gone"));
    for map in [
        r#"{"x":"../a.safetensors"}"#,
        r#"{"x":"/etc/passwd"}"#,
        r#"{"x":".."}"#,
        r#"{"x":""}"#,
    ] {
        list(map);
        let told = error(path());
        assert!(told.contains("no file name"), "{map}: {told}");
    }
    fs::write(path().join(INDEX), "{}").unwrap();
    assert!(error(path()).contains("no list"));
    // The same tensor from two places is nobody's.
    let both = [path().join("b.safetensors"), path().join("c.safetensors")];
    let told = Inputs::open(&both)
        .unwrap()
        .tensor("y")
        .unwrap_err()
        .to_string();
    assert!(told.contains("name one of them"), "{told}");
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let path = file(&folder, "x.safetensors", header, 16);
    let inputs = Inputs::open(std::slice::from_ref(&path)).unwrap();
    let x = inputs.tensor("x").unwrap().unwrap();
    assert_eq!(x.f32(1, 2).unwrap().len(), 2);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(60)
        .unwrap();
    let told = format!("{:#}", x.f32(0, 4).unwrap_err());
    assert!(told.contains("reading x of"), "{told}");
    assert!(x.f32(3, 2).unwrap_err().to_string().contains("x in"));
    assert!(
        x.i64(0, 1)
            .unwrap_err()
            .to_string()
            .contains("not I32 or I64")
    );
}
