//! One safetensors file, of which only the header and what is asked for is read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};

/// The most bytes of a header, as the safetensors library has it.
const MOST_HEADER: u64 = 100_000_000;

/// An open file. It is read, not mapped: a file that shrinks meanwhile is an error then, and not
/// the end of the process.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    file: Mutex<fs::File>,
    /// Where the tensors' bytes start.
    data: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

impl File {
    /// Reads the header, and checks that its tensors fill the file.
    pub fn open(path: &Path) -> Result<File> {
        let shown = path.display();
        let mut file = fs::File::open(path).with_context(|| format!("opening {shown}"))?;
        let metadata = file
            .metadata()
            .with_context(|| format!("opening {shown}"))?;
        ensure!(metadata.is_file(), "{shown} is no file");
        let bytes = metadata.len();
        let not = |why: String| format!("{shown} is no safetensors file: {why}");
        ensure!(bytes >= 8, not(format!("it has {bytes} bytes")));
        let mut length = [0; 8];
        let reading = || format!("reading the header of {shown}");
        file.read_exact(&mut length).with_context(reading)?;
        let length = u64::from_le_bytes(length);
        if length > MOST_HEADER || length > bytes - 8 {
            bail!(not(format!(
                "its header would take {length} bytes of a file of {bytes}, and {MOST_HEADER} are the most"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).with_context(reading)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| {
            anyhow::anyhow!(not(explain(&header).unwrap_or_else(|| error.to_string())))
        })?;
        let (data, needed) = (8 + length, metadata.data_len() as u64);
        if data.checked_add(needed) != Some(bytes) {
            bail!(
                "{shown} is damaged: its tensors take {needed} bytes after a header of {data}, and \
                 the file has {bytes}"
            );
        }
        let tensors = metadata.tensors();
        Ok(File {
            path: path.to_owned(),
            file: Mutex::new(file),
            data,
            tensors: tensors
                .into_iter()
                .map(|(name, info)| (name, info.clone()))
                .collect(),
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Bytes of a tensor: so many, from a place inside it.
    pub fn read(&self, name: &str, from: usize, bytes: usize) -> Result<Vec<u8>> {
        let shown = self.path.display();
        let info = self
            .tensors
            .get(name)
            .with_context(|| format!("{shown} has no {name}"))?;
        let (start, end) = info.data_offsets;
        let first = start.checked_add(from);
        let last = first.and_then(|first| first.checked_add(bytes));
        let (Some(first), true) = (first, last.is_some_and(|last| last <= end)) else {
            bail!(
                "{name} in {shown} has {} bytes, not {bytes} from {from}",
                end - start
            );
        };
        let mut read = Vec::new();
        read.try_reserve_exact(bytes)
            .map_err(|_| anyhow::anyhow!("no memory for {bytes} bytes of {name} of {shown}"))?;
        read.resize(bytes, 0);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data + first as u64))
            .and_then(|_| file.read_exact(&mut read))
            .with_context(|| format!("reading {name} of {shown}"))?;
        Ok(read)
    }
}

/// Which tensor of a header is wrong, where its library does not say.
fn explain(header: &[u8]) -> Option<String> {
    let all: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    for (name, value) in all.iter().filter(|(name, _)| *name != "__metadata__") {
        let info: TensorInfo = match serde_json::from_value(value.clone()) {
            Ok(info) => info,
            Err(error) => return Some(format!("tensor {name}: {error}")),
        };
        let (start, end) = info.data_offsets;
        let bits = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize(), |bits, &size| bits.checked_mul(size));
        let Some(bits) = bits else {
            return Some(format!("tensor {name}: shape {:?} overflows", info.shape));
        };
        if end.checked_sub(start) != Some(bits.div_ceil(8)) {
            return Some(format!(
                "tensor {name}: {:?} {:?} takes {} bytes, and its offsets are {start} to {end}",
                info.dtype,
                info.shape,
                bits.div_ceil(8)
            ));
        }
    }
    let error = serde_json::from_slice::<Metadata>(header).err()?;
    let offset = SafeTensorError::InvalidOffset(String::new()).to_string();
    let told = error.to_string();
    told.starts_with(offset.trim_end_matches('`'))
        .then(|| format!("{told}: it overlaps another, or leaves a gap"))
}
