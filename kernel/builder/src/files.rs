//! Files that other processes may be reading or writing at the same moment.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A path that could not be read or written, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = path.display())]
pub struct FileError {
    /// What was tried.
    pub action: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// The system's answer.
    pub source: io::Error,
}

/// Turns an [`io::Error`] into a [`FileError`] that names the path.
pub fn on<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> FileError + 'a {
    move |source| FileError {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Lower-case hexadecimal SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Writes a file so that no reader ever sees half of it. A file that already
/// holds these bytes is left alone, so its time stamp tells when it changed.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(on("create", folder))?;
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .tempfile_in(folder)
        .map_err(on("create a file in", folder))?;
    file.write_all(bytes).map_err(on("write", path))?;
    // tempfile makes files private to the user; these are ordinary build outputs.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::Permissions::from_mode(0o644);
        file.as_file()
            .set_permissions(mode)
            .map_err(on("set the mode of", path))?;
    }
    file.persist(path)
        .map_err(|error| on("rename into", path)(error.error))?;
    Ok(())
}

/// Held by the one process that may change what it guards; freed on drop, or by
/// the system when the process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Waits until this process alone holds `path`.
pub fn lock(path: &Path) -> Result<Lock, FileError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(on("create", folder))?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(on("open", path))?;
    file.lock().map_err(on("lock", path))?;
    Ok(Lock { _file: file })
}

/// Removes scratch folders that a killed process left behind. Only under the
/// lock that guards their making: there, any that exist are nobody's.
pub fn sweep(folder: &Path, prefix: &str) -> Result<(), FileError> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let path = entry.path();
            fs::remove_dir_all(&path).map_err(on("remove", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_bytes_keep_their_time_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inner/file");
        write_atomic(&path, b"one").unwrap();
        let old = fs::metadata(&path).unwrap().modified().unwrap();
        write_atomic(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), old);
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        // Nothing but the file itself is left.
        assert_eq!(
            fs::read_dir(folder.path().join("inner")).unwrap().count(),
            1
        );
    }

    #[test]
    fn one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = lock(&path).unwrap();
        let other = File::open(&path).unwrap();
        assert!(other.try_lock().is_err());
        drop(held);
        assert!(other.try_lock().is_ok());
    }

    #[test]
    fn leftovers_go_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".wheel-abc", "wheel", "kept"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        sweep(folder.path(), ".wheel-").unwrap();
        assert!(!folder.path().join(".wheel-abc").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        sweep(&folder.path().join("none"), ".wheel-").unwrap();
    }

    #[test]
    fn sha256_of_nothing() {
        assert!(sha256(b"").starts_with("e3b0c44298fc1c149afbf4c8996fb924"));
    }
}
