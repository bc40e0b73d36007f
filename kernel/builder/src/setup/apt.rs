//! Debian's rust-src package, through an apt configuration of our own.
//!
//! The mirror and its signing key are those that the machine already uses; only
//! the suite differs. Lists, caches and state lie in a scratch folder, so the
//! system's own package sources stay exactly as they were.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::files::{self, FileError};
use crate::process::{self, RunError};

/// Suites that carry (or carried) the compiler that is pinned.
const SUITES: &[&str] = &["trixie-backports"];
const LIMIT: Duration = Duration::from_secs(300);

/// Why the package was not to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("this machine has no apt sources of a Debian archive")]
    NoMirror,
    #[error("no suite of the machine's mirror has rust-src {version} (found: {found})")]
    NoVersion { version: String, found: String },
    #[error("the package holds no usr/src/rustc-{version}")]
    Empty { version: String },
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// A Debian archive that the machine uses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror {
    uris: String,
    /// The `Signed-By` value, verbatim (a path, or a whole key over several lines).
    signed_by: Option<String>,
}

/// Unpacks rust-src of `version` under `scratch`; returns the folder that holds `library`.
pub(super) fn source_package(
    scratch: &Path,
    version: &str,
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let mirrors = machine_mirrors();
    if mirrors.is_empty() {
        return Err(Error::NoMirror);
    }
    let apt = Private::new(scratch, &mirrors)?;
    say("apt-get update (private lists)");
    process::run(apt.command("apt-get").args(["-q", "update"]), LIMIT)?;
    let listed = process::run(
        apt.command("apt-cache").args(["madison", "rust-src"]),
        LIMIT,
    )?;
    let versions = offered(&listed.stdout);
    let package = versions
        .iter()
        .find(|offer| upstream(offer) == version)
        .ok_or_else(|| {
            let found = if versions.is_empty() {
                "none".to_owned()
            } else {
                versions.join(", ")
            };
            Error::NoVersion {
                version: version.to_owned(),
                found,
            }
        })?;
    say(&format!("apt-get download rust-src={package}"));
    let download = apt.folder.join("download");
    fs::create_dir_all(&download).map_err(files::on("create", &download))?;
    process::run(
        apt.command("apt-get")
            .current_dir(&download)
            .args(["-q", "download"])
            .arg(format!("rust-src={package}")),
        LIMIT,
    )?;
    let unpacked = scratch.join("unpacked");
    for entry in fs::read_dir(&download)
        .map_err(files::on("list", &download))?
        .flatten()
    {
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "deb")
        {
            let mut unpack = Command::new("dpkg-deb");
            process::run(unpack.arg("-x").arg(entry.path()).arg(&unpacked), LIMIT)?;
        }
    }
    let source = unpacked.join(format!("usr/src/rustc-{version}"));
    if source.is_dir() {
        Ok(source)
    } else {
        Err(Error::Empty {
            version: version.to_owned(),
        })
    }
}

/// apt with sources, lists, caches and state of its own.
struct Private {
    folder: PathBuf,
    config: PathBuf,
}

impl Private {
    fn new(scratch: &Path, mirrors: &[Mirror]) -> Result<Private, Error> {
        let folder = scratch.join("apt");
        for part in ["sources", "state/lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(files::on("create", &part))?;
        }
        let stanzas: Vec<String> = mirrors.iter().map(stanza).collect();
        files::write_atomic(
            &folder.join("sources/mok.sources"),
            stanzas.join("\n").as_bytes(),
        )?;
        let at = folder.display();
        let settings = format!(
            "Dir::Etc::sourcelist \"/dev/null\";\n\
             Dir::Etc::sourceparts \"{at}/sources\";\n\
             Dir::State \"{at}/state\";\n\
             Dir::State::Lists \"{at}/state/lists\";\n\
             Dir::Cache \"{at}/cache\";\n\
             Acquire::Languages \"none\";\n\
             APT::Update::Error-Mode \"any\";\n"
        );
        let config = folder.join("apt.conf");
        files::write_atomic(&config, settings.as_bytes())?;
        Ok(Private { folder, config })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C");
        command
    }
}

fn stanza(mirror: &Mirror) -> String {
    let signed_by = mirror
        .signed_by
        .as_ref()
        .map(|key| format!("Signed-By: {key}\n"))
        .unwrap_or_default();
    format!(
        "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\n{signed_by}",
        mirror.uris,
        SUITES.join(" ")
    )
}

/// The versions in the output of `apt-cache madison`.
fn offered(madison: &str) -> Vec<String> {
    madison
        .lines()
        .filter_map(|line| line.split('|').nth(1))
        .map(|version| version.trim().to_owned())
        .collect()
}

/// `1.95.0` of `1:1.95.0+dfsg1-2~bpo13+1`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let version = version.rsplit_once('-').map_or(version, |(rest, _)| rest);
    version.split_once('+').map_or(version, |(rest, _)| rest)
}

fn machine_mirrors() -> Vec<Mirror> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(parts) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut parts: Vec<_> = parts.flatten().map(|part| part.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut mirrors = Vec::new();
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let found = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => deb822(&text),
            Some("list") => one_line(&text),
            _ => continue,
        };
        for mirror in found {
            if !mirrors.contains(&mirror) {
                mirrors.push(mirror);
            }
        }
    }
    mirrors
}

/// A Debian archive proper has a release's suite and `main`; its security
/// archive and other vendors' have not.
fn is_debian(suites: &str, components: &str) -> bool {
    const RELEASES: &[&str] = &[
        "bullseye", "bookworm", "trixie", "forky", "duke", "sid", "stable", "testing",
    ];
    suites
        .split_whitespace()
        .any(|suite| RELEASES.contains(&suite))
        && components
            .split_whitespace()
            .any(|component| component == "main")
}

fn deb822(text: &str) -> Vec<Mirror> {
    let mut mirrors = Vec::new();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>();
    for stanza in lines.split(|line| line.trim().is_empty()) {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in stanza {
            if line.starts_with([' ', '\t']) {
                if let Some((_, value)) = fields.last_mut() {
                    value.push('\n');
                    value.push_str(line);
                }
            } else if let Some((name, value)) = line.split_once(':') {
                fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        let field = |name: &str| {
            fields
                .iter()
                .find(|(field, _)| field == name)
                .map_or("", |(_, value)| value.as_str())
        };
        let off = field("enabled").eq_ignore_ascii_case("no");
        let binary = field("types").split_whitespace().any(|kind| kind == "deb");
        if binary && !off && is_debian(field("suites"), field("components")) {
            let signed_by = Some(field("signed-by").to_owned()).filter(|key| !key.is_empty());
            mirrors.push(Mirror {
                uris: field("uris").to_owned(),
                signed_by,
            });
        }
    }
    mirrors
}

fn one_line(text: &str) -> Vec<Mirror> {
    text.lines().filter_map(mirror_of_line).collect()
}

fn mirror_of_line(line: &str) -> Option<Mirror> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    // `deb-src` and the like are not followed by a blank.
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let components = words.collect::<Vec<_>>().join(" ");
    let signed_by = options
        .split_whitespace()
        .find_map(|option| option.strip_prefix("signed-by="));
    is_debian(suite, &components).then(|| Mirror {
        uris: uri.to_owned(),
        signed_by: signed_by.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_version_of_a_backport() {
        assert_eq!(upstream("1.95.0+dfsg1-2~bpo13+1"), "1.95.0");
        assert_eq!(upstream("1:1.95.0-1"), "1.95.0");
        assert_eq!(upstream("1.95.0.1-1"), "1.95.0.1");
        let listed = " rust-src | 1.95.0+dfsg1-2~bpo13+1 | http://mirror.test/debian x/main\n";
        assert_eq!(offered(listed), ["1.95.0+dfsg1-2~bpo13+1"]);
    }

    #[test]
    fn mirrors_of_both_formats() {
        let text = "Types: deb deb-src\n# a comment\nURIs: http://mirror.test/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main contrib\n\
                    Signed-By: /usr/share/keyrings/k.gpg\n\n\
                    Types: deb\nURIs: http://mirror.test/security\nSuites: bookworm-security\n\
                    Components: main\n\n\
                    Types: deb\nEnabled: no\nURIs: http://off.test/debian\nSuites: sid\n\
                    Components: main\n\n\
                    Types: deb\nURIs: http://vendor.test\nSuites: nodistro\nComponents: main\n";
        let mirror = Mirror {
            uris: "http://mirror.test/debian".into(),
            signed_by: Some("/usr/share/keyrings/k.gpg".into()),
        };
        assert_eq!(deb822(text), std::slice::from_ref(&mirror));
        let text = "deb-src http://mirror.test/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] \
                    http://mirror.test/debian bookworm main # why\n\
                    deb http://vendor.test/apt vendor-bookworm main\n";
        assert_eq!(one_line(text), [mirror]);
    }

    #[test]
    fn a_key_in_the_stanza_is_kept_whole() {
        let text = "Types: deb\nURIs: http://mirror.test/debian\nSuites: trixie\n\
                    Components: main\nSigned-By:\n -----BEGIN\n .\n abc\n -----END\n";
        let mirrors = deb822(text);
        assert_eq!(mirrors.len(), 1);
        assert!(stanza(&mirrors[0]).contains("Signed-By: \n -----BEGIN\n .\n abc\n -----END\n"));
    }
}
