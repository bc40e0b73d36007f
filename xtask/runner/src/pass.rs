//! How a forward pass is launched, as it is asked for.

use clap::{Args, ValueEnum};
use mok::layer::{MoeConfig, Path};

/// How the forward pass is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathArg {
    /// A launch for each step
    Unfused,
    /// One launch
    Fused,
}

impl PathArg {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            PathArg::Unfused => "unfused",
            PathArg::Fused => "fused",
        }
    }

    /// As the layer takes it.
    pub fn path(self) -> Path {
        match self {
            PathArg::Unfused => Path::Unfused,
            PathArg::Fused => Path::Fused,
        }
    }
}

/// Settings of a pass in one launch, on which no bit depends.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Batches {
    /// Rows of a minibatch (a multiple of 128, at least 256), in one launch
    #[arg(long, value_name = "ROWS")]
    minibatch_rows: Option<u32>,
    /// Rows whose activations are held at once (a multiple of 128, at least 1024), in one launch
    #[arg(long, value_name = "ROWS")]
    macrobatch_rows: Option<u32>,
}

impl Batches {
    /// A layer with them; as it was where none are given.
    pub fn of(self, config: MoeConfig) -> MoeConfig {
        config
            .with_minibatch_rows(self.minibatch_rows.unwrap_or(config.minibatch_rows))
            .with_macrobatch_rows(self.macrobatch_rows.unwrap_or(config.macrobatch_rows))
    }
}
