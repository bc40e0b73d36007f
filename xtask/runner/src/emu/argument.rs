//! `--arg`: what one kernel parameter is given.

use std::path::{Path, PathBuf};

use mok_emu::tensor::swizzle::Swizzle;
use mok_emu::tensor::tma::{Dtype, TensorMap};

/// One `--arg`.
#[derive(Clone, Debug)]
pub struct Argument {
    /// As it was written.
    pub text: String,
    pub value: Value,
}

/// What it stands for.
#[derive(Clone, Debug)]
pub enum Value {
    /// The parameter's own bytes.
    Bytes(Vec<u8>),
    /// The address of a buffer.
    Pointer(Buffer),
    /// A tensor map over a buffer, the parameter itself.
    Map(Buffer, Box<TensorMap>),
    /// The address of a tensor map in device memory, over a buffer.
    MapPointer(Buffer, Box<TensorMap>),
}

/// A buffer in device memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub content: Content,
    /// Where its bytes go when the kernel has ended.
    pub output: Option<PathBuf>,
}

/// What a buffer holds before the kernel runs.
#[derive(Clone, Debug)]
pub enum Content {
    File(PathBuf),
    Zeros(u64),
}

/// Every form, for errors.
const FORMS: &str = "in=PATH, inout=PATH:OUTPATH, out=BYTES:OUTPATH, i32=, u32=, i64=, u64=, f32=, \
                     f64=, hex=, null, map=, mapout=, pmap= or pmapout=";

impl Argument {
    /// Reads one `--arg`.
    pub fn parse(text: &str) -> Result<Argument, String> {
        Ok(Argument {
            text: text.to_owned(),
            value: value(text)?,
        })
    }

    /// Bytes of the parameter that it fits.
    pub fn bytes(&self) -> usize {
        match &self.value {
            Value::Bytes(bytes) => bytes.len(),
            Value::Pointer(_) | Value::MapPointer(..) => 8,
            Value::Map(..) => mok_emu::tensor::tma::BYTES,
        }
    }

    /// Its buffer, if it has one.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.value {
            Value::Bytes(_) => None,
            Value::Pointer(buffer) | Value::Map(buffer, _) | Value::MapPointer(buffer, _) => {
                Some(buffer)
            }
        }
    }

    /// Its tensor map, if it has one.
    pub fn map(&self) -> Option<&TensorMap> {
        match &self.value {
            Value::Map(_, map) | Value::MapPointer(_, map) => Some(map),
            Value::Bytes(_) | Value::Pointer(_) => None,
        }
    }
}

fn value(text: &str) -> Result<Value, String> {
    if text == "null" {
        return Ok(Value::Bytes(vec![0; 8]));
    }
    let (form, rest) = text
        .split_once('=')
        .ok_or_else(|| format!("it is one of {FORMS}"))?;
    let bytes = |value: Option<Vec<u8>>| {
        value
            .map(Value::Bytes)
            .ok_or_else(|| format!("`{rest}` is no {form}"))
    };
    match form {
        "i32" => bytes(integer(rest, i32::MIN.into(), i32::MAX.into(), 4)),
        "u32" => bytes(integer(rest, 0, u32::MAX.into(), 4)),
        "i64" => bytes(integer(rest, i64::MIN.into(), i64::MAX.into(), 8)),
        "u64" => bytes(integer(rest, 0, u64::MAX.into(), 8)),
        "f32" => {
            let number: Option<f32> = rest.parse().ok();
            bytes(number.map(|number| number.to_le_bytes().to_vec()))
        }
        "f64" => {
            let number: Option<f64> = rest.parse().ok();
            bytes(number.map(|number| number.to_le_bytes().to_vec()))
        }
        "hex" => bytes(hex(rest)),
        "in" => Ok(Value::Pointer(Buffer {
            content: Content::File(path(rest)?),
            output: None,
        })),
        "inout" => {
            let (from, to) = rest
                .rsplit_once(':')
                .ok_or("it is inout=PATH:OUTPATH, such as inout=c.bin:c.out")?;
            Ok(Value::Pointer(Buffer {
                content: Content::File(path(from)?),
                output: Some(path(to)?),
            }))
        }
        "out" => {
            let (count, to) = rest
                .split_once(':')
                .ok_or("it is out=BYTES:OUTPATH, such as out=4096:c.out")?;
            Ok(Value::Pointer(Buffer {
                content: Content::Zeros(byte_count(count)?),
                output: Some(path(to)?),
            }))
        }
        "map" | "pmap" => {
            let (from, map) = map(rest, &format!("{form}=PATH"))?;
            let buffer = Buffer {
                content: Content::File(path(from)?),
                output: None,
            };
            Ok(mapped(form, buffer, map))
        }
        "mapout" | "pmapout" => {
            let (head, map) = map(rest, &format!("{form}=BYTES,OUTPATH"))?;
            let (count, to) = head.split_once(',').ok_or_else(|| {
                format!("it begins with BYTES,OUTPATH, such as {form}=8192,d.out:bf16:...")
            })?;
            let buffer = Buffer {
                content: Content::Zeros(byte_count(count)?),
                output: Some(path(to)?),
            };
            Ok(mapped(form, buffer, map))
        }
        _ => Err(format!("there is no `{form}=`; it is one of {FORMS}")),
    }
}

fn mapped(form: &str, buffer: Buffer, map: Box<TensorMap>) -> Value {
    match form.starts_with('p') {
        true => Value::MapPointer(buffer, map),
        false => Value::Map(buffer, map),
    }
}

fn path(text: &str) -> Result<PathBuf, String> {
    match text.is_empty() {
        true => Err("a path is empty".into()),
        false => Ok(Path::new(text).to_owned()),
    }
}

/// A decimal or `0x` number.
fn number(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse().ok()?,
    };
    let value = i128::from(value);
    Some(if negative { -value } else { value })
}

fn integer(text: &str, least: i128, most: i128, bytes: usize) -> Option<Vec<u8>> {
    let value = number(text).filter(|value| (least..=most).contains(value))?;
    Some(value.to_le_bytes()[..bytes].to_vec())
}

fn byte_count(text: &str) -> Result<u64, String> {
    number(text)
        .and_then(|value| u64::try_from(value).ok())
        .ok_or_else(|| format!("`{text}` is no number of bytes"))
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}

/// What stands before the map's own parts, and the map with a base address to be replaced.
fn map<'a>(text: &'a str, head: &str) -> Result<(&'a str, Box<TensorMap>), String> {
    let wanted = || {
        format!(
            "it is {head}:DTYPE:DIMS:STRIDES:BOX:SWIZZLE, where all behind the first is such as \
             bf16:256,64:512:64,32:128"
        )
    };
    // From the right, since a path may hold a colon.
    let mut parts = text.rsplitn(6, ':');
    let [
        Some(swizzle),
        Some(tile),
        Some(strides),
        Some(dims),
        Some(dtype),
        Some(first),
    ] = std::array::from_fn(|_| parts.next())
    else {
        return Err(wanted());
    };
    let dtype = match dtype {
        "i32" => Some(Dtype::S32),
        "i64" => Some(Dtype::S64),
        name => Dtype::from_name(name),
    }
    .ok_or_else(|| {
        format!("DTYPE is bf16, f16, f32, f64, u8, u16, u32, u64, i32 or i64, not `{dtype}`")
    })?;
    let swizzle = match swizzle {
        "none" => Swizzle::None,
        "32" => Swizzle::B32,
        "64" => Swizzle::B64,
        "128" => Swizzle::B128,
        other => return Err(format!("SWIZZLE is none, 32, 64 or 128, not `{other}`")),
    };
    let dims = list("DIMS", dims)?;
    let strides = if strides.is_empty() {
        Vec::new()
    } else {
        list("STRIDES", strides)?
    };
    let tile: Vec<u32> = list("BOX", tile)?;
    let mut map = TensorMap::new(dtype, 0, &dims, &strides, &tile)?;
    map.swizzle = swizzle;
    map.validate()?;
    Ok((first, Box::new(map)))
}

fn list<T: std::str::FromStr>(what: &str, text: &str) -> Result<Vec<T>, String> {
    text.split(',')
        .map(|number| {
            number
                .parse()
                .map_err(|_| format!("{what}: `{number}` is no number"))
        })
        .collect()
}

/// Bytes from a tensor's first element to behind its last.
pub fn reach(map: &TensorMap) -> u128 {
    let beyond: u128 = (0..map.rank)
        .map(|d| u128::from(map.dims[d].saturating_sub(1)) * u128::from(map.strides[d]))
        .sum();
    beyond + map.dtype.bytes() as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        match Argument::parse(text).unwrap().value {
            Value::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_become_their_bytes() {
        assert_eq!(bytes("i32=-2"), (-2i32).to_le_bytes());
        assert_eq!(bytes("u32=0xffffffff"), [0xff; 4]);
        assert_eq!(bytes("i64=-1"), [0xff; 8]);
        assert_eq!(bytes("u64=18446744073709551615"), [0xff; 8]);
        assert_eq!(bytes("f32=-1.5"), (-1.5f32).to_le_bytes());
        assert_eq!(bytes("f64=-0.1"), (-0.1f64).to_le_bytes());
        assert_eq!(bytes("hex=00aF10"), [0, 0xaf, 0x10]);
        assert_eq!(bytes("null"), [0; 8]);
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        for (text, hint) in [
            ("7", "u64="),
            ("f16=1", "f32="),
            ("i32=2147483648", "no i32"),
            ("u32=-1", "no u32"),
            ("f32=one", "no f32"),
            ("hex=123", "no hex"),
            ("in=", "empty"),
            ("inout=a", "inout=PATH:OUTPATH"),
            ("out=x:a", "no number of bytes"),
            ("out=4", "out=BYTES:OUTPATH"),
            ("map=a:bf16:64", "map=PATH:DTYPE"),
            ("map=a:int:64::64:none", "DTYPE is"),
            ("map=a:bf16:64::64:16", "SWIZZLE is"),
            ("map=a:bf16:64,x::64,1:none", "DIMS"),
            ("map=a:bf16:64,2:24:64,2:none", "multiple of 16"),
            ("map=a:bf16:64,2::128,2:128", "swizzle"),
            ("map=a:bf16:64,2::64:none", "1 to 5"),
            ("mapout=64:bf16:32::32:none", "BYTES,OUTPATH"),
            ("pmap=a:bf16:64", "pmap=PATH:DTYPE"),
            ("f64=x", "no f64"),
        ] {
            let error = Argument::parse(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn maps_reach_as_far_as_their_strides() {
        let argument = Argument::parse("map=a:b.bin:f32:3,2,5:16,64:4,2,1:none").unwrap();
        let Value::Map(buffer, map) = &argument.value else {
            panic!("{argument:?}")
        };
        assert!(matches!(&buffer.content, Content::File(path) if path == Path::new("a:b.bin")));
        assert_eq!(reach(map), 8 + 16 + 4 * 64 + 4);
        assert_eq!(argument.bytes(), 128);
        let argument = Argument::parse("pmapout=64,d:u8:64::64:none").unwrap();
        assert!(matches!(argument.value, Value::MapPointer(..)));
        assert_eq!((argument.bytes(), argument.map().unwrap().rank), (8, 1));
    }
}
