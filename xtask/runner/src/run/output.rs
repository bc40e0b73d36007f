//! The file that a run leaves: outputs, and the routes that they were made with.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::problem::Problem;

/// All ranks' tensors, tokens in the job's order.
#[derive(Debug, Default)]
pub struct Outputs {
    /// `[tokens][hidden]`.
    pub out: Vec<bf16>,
    /// `[tokens][top_k]`.
    pub topk_experts: Vec<i32>,
    /// `[tokens][top_k]`.
    pub router_weights: Vec<f32>,
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => ".".into(),
    }
}

/// Fails where the file could not be written, before anything is computed for it.
pub fn check(path: &Path) -> Result<()> {
    check_place("--output", path)
}

/// The same for the file that an option names.
pub fn check_place(option: &str, path: &Path) -> Result<()> {
    let folder = folder_of(path);
    ensure!(
        path.file_name().is_some() && !path.is_dir(),
        "{option} {} names no file",
        path.display()
    );
    tempfile::tempfile_in(&folder)
        .with_context(|| format!("{option} {}: writing to its folder", path.display()))?;
    Ok(())
}

/// Writes the file.
pub fn write(
    path: &Path,
    problem: &Problem,
    outputs: &Outputs,
    sha256: Option<&str>,
) -> Result<()> {
    let total: usize = problem.tokens.iter().sum();
    let (hidden, top_k) = (problem.shape.hidden as usize, problem.shape.top_k as usize);
    let view = |dtype, columns, bytes| TensorView::new(dtype, vec![total, columns], bytes);
    let tensors = [
        (
            "out",
            view(Dtype::BF16, hidden, bytemuck::cast_slice(&outputs.out))?,
        ),
        (
            "topk_experts",
            view(
                Dtype::I32,
                top_k,
                bytemuck::cast_slice(&outputs.topk_experts),
            )?,
        ),
        (
            "router_weights",
            view(
                Dtype::F32,
                top_k,
                bytemuck::cast_slice(&outputs.router_weights),
            )?,
        ),
    ];
    let tokens: Vec<String> = problem.tokens.iter().map(usize::to_string).collect();
    let mut about = HashMap::from([
        ("made_by".to_owned(), "mok run".to_owned()),
        ("tokens_of_ranks".to_owned(), tokens.join(",")),
    ]);
    about.extend(sha256.map(|hash| ("out_sha256".to_owned(), hash.to_owned())));
    let bytes = safetensors::serialize(tensors, Some(about))?;
    put(path, |file| Ok(file.write_all(&bytes)?))
}

/// Writes a file beside its place, then puts it there: it is whole, or as it was before.
pub fn put(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let writing = || format!("writing {}", path.display());
    let mut options = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As files are made otherwise, the user's mask aside; tempfile's own are private.
        options.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let file = options
        .prefix(".mok-output-")
        .tempfile_in(folder_of(path))
        .with_context(writing)?;
    let mut buffered = BufWriter::new(file);
    write(&mut buffered).with_context(writing)?;
    let file = buffered.into_inner().map_err(|error| error.into_error());
    let file = file.with_context(writing)?;
    file.as_file().sync_all().with_context(writing)?;
    file.persist(path).with_context(writing)?;
    Ok(())
}
