//! The config.json of a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What a checkpoint says of its model.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    values: Value,
}

impl Config {
    /// That of a folder, if it has one.
    pub fn read(folder: &Path) -> Result<Option<Config>> {
        let path = folder.join("config.json");
        if !path.exists() {
            return Ok(None);
        }
        let shown = path.display();
        let text = fs::read(&path).with_context(|| format!("reading {shown}"))?;
        let mut values: Value =
            serde_json::from_slice(&text).with_context(|| format!("{shown} is no JSON"))?;
        // Models of more than text keep what is meant here one level below.
        if let Some(inner) = values.get_mut("text_config") {
            values = inner.take();
        }
        Ok(Some(Config { path, values }))
    }

    fn wrong(&self, key: &str, expected: &str) -> anyhow::Error {
        let shown = self.path.display();
        match self.values.get(key) {
            None => anyhow::anyhow!("{shown} has no {key}, which is to be {expected}"),
            Some(value) => anyhow::anyhow!("{shown}: {key} is {value}, not {expected}"),
        }
    }

    /// A whole number from 1 that must be there.
    pub fn count(&self, key: &str) -> Result<usize> {
        let value = self.values.get(key).and_then(Value::as_u64);
        let count = value
            .filter(|&value| value > 0)
            .and_then(|value| usize::try_from(value).ok());
        count.ok_or_else(|| self.wrong(key, "a whole number from 1"))
    }

    /// A finite number that must be there.
    pub fn number(&self, key: &str) -> Result<f32> {
        let value = self.values.get(key).and_then(Value::as_f64);
        let value = value
            .map(|value| value as f32)
            .filter(|value| value.is_finite());
        value.ok_or_else(|| self.wrong(key, "a number"))
    }

    /// A flag that must be there.
    pub fn flag(&self, key: &str) -> Result<bool> {
        let value = self.values.get(key).and_then(Value::as_bool);
        value.ok_or_else(|| self.wrong(key, "true or false"))
    }

    /// Fails if a key is there and has another value.
    pub fn only(&self, key: &str, value: &str, why: &str) -> Result<()> {
        match self.values.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(there) if there == value => Ok(()),
            Some(_) => bail!("{}: {why}", self.wrong(key, &format!("{value:?}"))),
        }
    }

    /// The name of the model's family.
    pub fn family(&self) -> &str {
        let family = self.values.get("model_type").and_then(Value::as_str);
        family.unwrap_or("unknown")
    }
}
