//! Writes launch specs into PTX.
//!
//! rustc writes no launch bounds, and without them ptxas assumes 1,024 threads,
//! caps registers at 64 and ignores `setmaxnreg`. It also aligns a tensor map
//! that is passed by value to 16 bytes where TMA needs 64 (PTX ISA,
//! "Tensor-map"): a larger alignment in the source panics rustc 1.95.

use crate::ptx::{self, Entry, Module, ParamDecl};
use crate::{LaunchSpec, Param};

/// Alignment of a tensor map.
const TENSOR_MAP_ALIGN: &str = "64";

/// Where PTX and launch specs disagree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not PTX.
    #[error(transparent)]
    Ptx(#[from] ptx::Error),
    /// A spec without its entry.
    #[error(
        "the launch spec of {entry} has no entry in the PTX (it has: {}): is its kernel built, `#[unsafe(no_mangle)]` and `extern \"ptx-kernel\"`?",
        names(found)
    )]
    NoEntry {
        /// The spec's entry.
        entry: String,
        /// What the PTX has.
        found: Vec<String>,
    },
    /// An entry without a spec.
    #[error(
        "the entry {entry} (PTX line {line}) has no launch spec: add one and list it in ENTRIES"
    )]
    NoSpec {
        /// The entry.
        entry: String,
        /// Where it is.
        line: usize,
    },
    /// One entry, two specs.
    #[error("two launch specs name the entry {entry}")]
    TwoSpecs {
        /// The entry.
        entry: String,
    },
    /// Other parameters than the spec says.
    #[error("{entry} takes {found} parameters, its launch spec says {expected}")]
    ParamCount {
        /// The entry.
        entry: String,
        /// In the PTX.
        found: usize,
        /// In the spec.
        expected: usize,
    },
    /// A parameter of another size than the spec says.
    #[error(
        "parameter {index} of {entry} is {found} bytes, its launch spec says {expected}: do both name the same struct?"
    )]
    ParamSize {
        /// The entry.
        entry: String,
        /// Which parameter, from 0.
        index: usize,
        /// In the PTX.
        found: u64,
        /// In the spec.
        expected: u32,
    },
    /// A launch directive that nobody expected.
    #[error("{entry} already has {directive}: launch specs are the only place for it")]
    Already {
        /// The entry.
        entry: String,
        /// The directive.
        directive: String,
    },
    /// A spec that no launch can satisfy.
    #[error("the launch spec of {entry} has {what} = {value}, outside {limit}")]
    Spec {
        /// The entry.
        entry: String,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The limits.
        limit: &'static str,
    },
}

fn names(found: &[String]) -> String {
    if found.is_empty() {
        "none".to_owned()
    } else {
        found.join(", ")
    }
}

/// The PTX with every spec written into its entry's header.
pub fn apply(text: &str, specs: &[&LaunchSpec]) -> Result<String, Error> {
    let module = Module::scan(text)?;
    for (index, spec) in specs.iter().enumerate() {
        if specs[..index]
            .iter()
            .any(|earlier| earlier.entry == spec.entry)
        {
            return Err(Error::TwoSpecs {
                entry: spec.entry.to_owned(),
            });
        }
        if !module.entries.iter().any(|entry| entry.name == spec.entry) {
            let found = module
                .entries
                .iter()
                .map(|entry| entry.name.clone())
                .collect();
            return Err(Error::NoEntry {
                entry: spec.entry.to_owned(),
                found,
            });
        }
    }
    // Edits as (offset, bytes replaced, text), in the order of the file.
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    for entry in &module.entries {
        let spec = specs
            .iter()
            .find(|spec| spec.entry == entry.name)
            .ok_or_else(|| Error::NoSpec {
                entry: entry.name.clone(),
                line: module.line(entry.at),
            })?;
        check(&module, entry, spec)?;
        for (decl, param) in entry.params.iter().zip(spec.params) {
            if matches!(param, Param::TensorMap | Param::TensorMaps(_)) {
                edits.push(realign(decl));
            }
        }
        edits.push((entry.body.start, 0, header(spec)));
    }
    let mut out = String::with_capacity(text.len() + 256 * edits.len());
    let mut at = 0;
    for (offset, replaced, new) in edits {
        out.push_str(&text[at..offset]);
        out.push_str(&new);
        at = offset + replaced;
    }
    out.push_str(&text[at..]);
    Ok(out)
}

fn check(module: &Module, entry: &Entry, spec: &LaunchSpec) -> Result<(), Error> {
    let name = || entry.name.clone();
    let within = |what, value, low: u32, high: u32, limit| {
        let ok = (low..=high).contains(&value);
        if ok {
            Ok(())
        } else {
            Err(Error::Spec {
                entry: name(),
                what,
                value,
                limit,
            })
        }
    };
    within("threads", spec.threads, 1, 1024, "1 to 1024")?;
    within("min_blocks", spec.min_blocks, 1, 32, "1 to 32")?;
    within("cluster", spec.cluster, 1, 16, "1 to 16")?;
    let (found, expected) = (entry.params.len(), spec.params.len());
    if found != expected {
        return Err(Error::ParamCount {
            entry: name(),
            found,
            expected,
        });
    }
    for (index, (decl, param)) in entry.params.iter().zip(spec.params).enumerate() {
        let (found, expected) = (decl.size, param.size());
        if found != u64::from(expected) {
            return Err(Error::ParamSize {
                entry: name(),
                index,
                found,
                expected,
            });
        }
    }
    match module
        .words(entry.directives.clone())
        .find(|word| is_launch_bound(word.text))
    {
        None => Ok(()),
        Some(word) => Err(Error::Already {
            entry: name(),
            directive: word.text.to_owned(),
        }),
    }
}

fn is_launch_bound(word: &str) -> bool {
    [
        ".maxntid",
        ".reqntid",
        ".minnctapersm",
        ".maxnctapersm",
        ".reqnctapercluster",
        ".maxnreg",
    ]
    .contains(&word)
}

fn realign(decl: &ParamDecl) -> (usize, usize, String) {
    match &decl.align {
        Some(number) => (number.start, number.len(), TENSOR_MAP_ALIGN.to_owned()),
        None => (decl.after_param, 0, format!(" .align {TENSOR_MAP_ALIGN}")),
    }
}

fn header(spec: &LaunchSpec) -> String {
    let mut lines = format!(
        ".reqntid {}, 1, 1\n.minnctapersm {}\n",
        spec.threads, spec.min_blocks
    );
    if spec.cluster > 1 {
        lines.push_str(&format!(".reqnctapercluster {}, 1, 1\n", spec.cluster));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.4\n.target sm_90a\n.address_size 64\n\n\
        .visible .entry one(\n\t.param .align 16 .b8 one_param_0[128],\n\
        \t.param .align 8 .b8 one_param_1[64]\n)\n{\n\tret;\n}\n.visible .entry two()\n{\n\tret;\n}\n";
    const ONE: LaunchSpec = LaunchSpec {
        entry: "one",
        threads: 384,
        min_blocks: 1,
        cluster: 2,
        params: &[Param::TensorMap, Param::Bytes(64)],
        max_shared: 0,
    };
    const TWO: LaunchSpec = LaunchSpec {
        entry: "two",
        threads: 32,
        min_blocks: 3,
        cluster: 1,
        params: &[],
        ..ONE
    };

    #[test]
    fn directives_and_alignment() {
        let out = apply(PTX, &[&TWO, &ONE]).unwrap();
        assert!(out.contains(
            "\t.param .align 64 .b8 one_param_0[128],\n\t.param .align 8 .b8 one_param_1[64]\n)\n\
             .reqntid 384, 1, 1\n.minnctapersm 1\n.reqnctapercluster 2, 1, 1\n{\n\tret;"
        ));
        assert!(out.contains("two()\n.reqntid 32, 1, 1\n.minnctapersm 3\n{"));
        let again = apply(&out, &[&TWO, &ONE]).unwrap_err();
        assert!(matches!(again, Error::Already { directive, .. } if directive == ".reqntid"));
    }

    #[test]
    fn disagreements() {
        let missing = LaunchSpec {
            entry: "three",
            ..TWO
        };
        let error = apply(PTX, &[&ONE, &TWO, &missing]).unwrap_err();
        assert!(matches!(error, Error::NoEntry { entry, found }
            if entry == "three" && found == ["one", "two"]));
        let error = apply(PTX, &[&ONE]).unwrap_err();
        assert_eq!(
            error,
            Error::NoSpec {
                entry: "two".into(),
                line: 12
            }
        );
        assert!(matches!(
            apply(PTX, &[&ONE, &ONE]),
            Err(Error::TwoSpecs { .. })
        ));
        let fewer = LaunchSpec {
            params: &[Param::TensorMap],
            ..ONE
        };
        let error = apply(PTX, &[&fewer, &TWO]).unwrap_err();
        assert_eq!(
            error,
            Error::ParamCount {
                entry: "one".into(),
                found: 2,
                expected: 1
            }
        );
        let other = LaunchSpec {
            params: &[Param::TensorMap, Param::Bytes(72)],
            ..ONE
        };
        let error = apply(PTX, &[&other, &TWO]).unwrap_err();
        let expected = Error::ParamSize {
            entry: "one".into(),
            index: 1,
            found: 64,
            expected: 72,
        };
        assert_eq!(error, expected);
        let wide = LaunchSpec {
            threads: 2048,
            ..ONE
        };
        assert!(matches!(
            apply(PTX, &[&wide, &TWO]),
            Err(Error::Spec { value: 2048, .. })
        ));
    }
}
