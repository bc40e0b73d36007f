//! Tensors of safetensors files: a layer's input, and a checkpoint's weights.

mod config;
mod experts;
mod file;
mod router;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::Dtype;

pub use config::Config;
pub use experts::{Experts, LOOKED_FOR};
use file::File;
pub use router::Router;

/// All files and folders that the command line names.
#[derive(Debug, Default)]
pub struct Inputs {
    sources: Vec<Source>,
}

/// A file, or the parts of a checkpoint.
#[derive(Debug)]
struct Source {
    /// As it was named.
    path: PathBuf,
    /// Where its parts and its config.json are.
    folder: PathBuf,
    /// The file of each tensor.
    tensors: BTreeMap<String, PathBuf>,
    open: Mutex<BTreeMap<PathBuf, Arc<File>>>,
}

/// The list of a checkpoint's parts.
const INDEX: &str = "model.safetensors.index.json";
/// A checkpoint in one file.
const WHOLE: &str = "model.safetensors";

impl Inputs {
    /// Opens what is named: files, lists of parts, or folders of either.
    pub fn open(paths: &[PathBuf]) -> Result<Inputs> {
        let sources = paths
            .iter()
            .map(|path| Source::open(path))
            .collect::<Result<_>>()?;
        Ok(Inputs { sources })
    }

    /// Whether nothing was named.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// What was named, for errors.
    pub fn shown(&self) -> String {
        let paths: Vec<String> = self
            .sources
            .iter()
            .map(|source| source.path.display().to_string())
            .collect();
        paths.join(", ")
    }

    /// Names of all tensors.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.sources
            .iter()
            .flat_map(|source| source.tensors.keys().map(String::as_str))
    }

    /// A tensor by its name; an error if two inputs have it.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        let mut holders = self
            .sources
            .iter()
            .filter(|source| source.tensors.contains_key(name));
        let Some(holder) = holders.next() else {
            return Ok(None);
        };
        if let Some(other) = holders.next() {
            bail!(
                "{name} is in {} and in {}: name one of them",
                holder.path.display(),
                other.path.display()
            );
        }
        holder.tensor(name).map(Some)
    }

    /// A tensor that must be there.
    fn needed(&self, name: &str, why: &str) -> Result<Tensor> {
        self.tensor(name)?
            .with_context(|| format!("{name} is missing in {}: {why}", self.shown()))
    }

    /// The config.json of the input that has this tensor.
    pub fn config(&self, name: &str) -> Result<Option<Config>> {
        let holder = self
            .sources
            .iter()
            .find(|source| source.tensors.contains_key(name));
        holder.map_or(Ok(None), |source| Config::read(&source.folder))
    }
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let shown = path.display();
        let metadata = fs::metadata(path).with_context(|| format!("opening {shown}"))?;
        let folder = match metadata.is_dir() {
            true => path.to_owned(),
            false => path.parent().unwrap_or(Path::new("")).to_owned(),
        };
        let mut source = Source {
            path: path.to_owned(),
            tensors: BTreeMap::new(),
            open: Mutex::default(),
            folder,
        };
        if metadata.is_dir() {
            let index = path.join(INDEX);
            if index.is_file() {
                source.listed(&index)?;
                return Ok(source);
            }
            let whole = path.join(WHOLE);
            if whole.is_file() {
                source.file(&whole)?;
                return Ok(source);
            }
            let mut files = Vec::new();
            for entry in fs::read_dir(path).with_context(|| format!("listing {shown}"))? {
                let file = entry.with_context(|| format!("listing {shown}"))?.path();
                if file
                    .extension()
                    .is_some_and(|extension| extension == "safetensors")
                {
                    files.push(file);
                }
            }
            ensure!(
                !files.is_empty(),
                "{shown} holds no .safetensors file and no {INDEX}"
            );
            files.sort();
            for file in files {
                source.file(&file)?;
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            source.listed(path)?;
        } else {
            source.file(path)?;
        }
        Ok(source)
    }

    /// All tensors of a file.
    fn file(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path)?;
        for name in file.tensors().keys() {
            if let Some(other) = self.tensors.insert(name.clone(), path.to_owned()) {
                bail!("{name} is in {} and in {}", other.display(), path.display());
            }
        }
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        open.insert(path.to_owned(), Arc::new(file));
        Ok(())
    }

    /// The tensors of a list of parts; the parts are opened when they are needed.
    fn listed(&mut self, index: &Path) -> Result<()> {
        let shown = index.display();
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = fs::read(index).with_context(|| format!("reading {shown}"))?;
        let index: Index = serde_json::from_slice(&text)
            .with_context(|| format!("{shown} is no list of a checkpoint's parts"))?;
        for (name, part) in index.weight_map {
            // A list names files beside it, and none elsewhere.
            let plain = Path::new(&part).file_name() == Some(part.as_ref());
            ensure!(
                plain,
                "{shown} puts {name} into {part:?}, which is no file name"
            );
            self.tensors.insert(name, self.folder.join(part));
        }
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        let path = self.tensors.get(name);
        let path = path.with_context(|| format!("{} has no {name}", self.path.display()))?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match open.get(path) {
            Some(file) => file.clone(),
            None => {
                let file = Arc::new(File::open(path)?);
                open.insert(path.clone(), file.clone());
                file
            }
        };
        let info = file.tensors().get(name).with_context(|| {
            let list = self.path.display();
            format!(
                "{list} puts {name} into {}, which has no such tensor",
                path.display()
            )
        })?;
        Ok(Tensor {
            name: name.to_owned(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            file,
        })
    }
}

/// A tensor of a file. Its numbers are read when they are asked for.
#[derive(Clone, Debug)]
pub struct Tensor {
    file: Arc<File>,
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Tensor {
    /// Refuses the tensor, saying what it is and what it should be.
    pub fn unfit(&self, expected: &str) -> anyhow::Error {
        anyhow::anyhow!(
            "{} in {} is {:?} {:?}, not {expected}",
            self.name,
            self.file.path().display(),
            self.dtype,
            self.shape
        )
    }

    /// Rows and columns of a matrix with elements of one of these types.
    pub fn matrix(&self, dtypes: &[Dtype], expected: &str) -> Result<[usize; 2]> {
        match <[usize; 2]>::try_from(self.shape.clone()) {
            Ok(extent) if dtypes.contains(&self.dtype) => Ok(extent),
            _ => Err(self.unfit(expected)),
        }
    }

    /// Whether it is rounded when it is read as bf16.
    pub fn is_rounded(&self) -> bool {
        self.dtype != Dtype::BF16
    }

    fn bytes(&self, from: usize, elements: usize) -> Result<Vec<u8>> {
        let size = self.dtype.bitsize() / 8;
        let bytes = elements.checked_mul(size).zip(from.checked_mul(size));
        let (bytes, from) = bytes.with_context(|| format!("{} overflows", self.name))?;
        self.file.read(&self.name, from, bytes)
    }

    /// Elements as f32.
    pub fn f32(&self, from: usize, elements: usize) -> Result<Vec<f32>> {
        if !FLOATS.contains(&self.dtype) {
            return Err(self.unfit("BF16, F32 or F16"));
        }
        let bytes = self.bytes(from, elements)?;
        match self.dtype {
            Dtype::F32 => Ok(each(&bytes, f32::from_le_bytes)),
            Dtype::BF16 => Ok(each(&bytes, |bytes| bf16::from_le_bytes(bytes).to_f32())),
            _ => Ok(each(&bytes, |bytes| f16::from_le_bytes(bytes).to_f32())),
        }
    }

    /// Elements as bf16, rounded to the nearest where they have more bits.
    pub fn bf16(&self, from: usize, elements: usize) -> Result<Vec<bf16>> {
        if self.dtype == Dtype::BF16 {
            return Ok(each(&self.bytes(from, elements)?, bf16::from_le_bytes));
        }
        let wide = self.f32(from, elements)?;
        Ok(wide.into_iter().map(bf16::from_f32).collect())
    }

    /// Elements as i64.
    pub fn i64(&self, from: usize, elements: usize) -> Result<Vec<i64>> {
        if !INTEGERS.contains(&self.dtype) {
            return Err(self.unfit("I32 or I64"));
        }
        let bytes = self.bytes(from, elements)?;
        match self.dtype {
            Dtype::I32 => Ok(each(&bytes, |bytes| i32::from_le_bytes(bytes).into())),
            _ => Ok(each(&bytes, i64::from_le_bytes)),
        }
    }
}

/// What numbers of a layer may be stored as.
pub const FLOATS: [Dtype; 3] = [Dtype::BF16, Dtype::F32, Dtype::F16];

/// What choices of experts may be stored as.
pub const INTEGERS: [Dtype; 2] = [Dtype::I32, Dtype::I64];

fn each<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (numbers, _) = bytes.as_chunks::<N>();
    numbers.iter().map(|bytes| number(*bytes)).collect()
}
