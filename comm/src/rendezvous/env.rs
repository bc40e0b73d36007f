//! What a launcher says, in its variables.

use std::ffi::OsString;
use std::str::FromStr;

use super::Rendezvous;
use crate::error::{Error, Result};
use crate::group::MAX_RANKS;

type Get<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn bad(variable: &'static str, problem: impl Into<String>, advice: impl Into<String>) -> Error {
    Error::Environment {
        variable,
        problem: problem.into(),
        advice: advice.into(),
    }
}

/// A variable that is set to something.
fn text(get: Get<'_>, variable: &'static str) -> Result<Option<String>> {
    match get(variable) {
        None => Ok(None),
        Some(value) => match value.into_string() {
            Ok(value) if value.trim().is_empty() => Ok(None),
            Ok(value) => Ok(Some(value.trim().to_owned())),
            Err(_) => Err(bad(variable, "isn't UTF-8", "set it to plain text")),
        },
    }
}

fn number<T: FromStr>(get: Get<'_>, variable: &'static str, what: &str) -> Result<Option<T>> {
    let Some(text) = text(get, variable)? else {
        return Ok(None);
    };
    let value = text.parse();
    value.map(Some).map_err(|_| {
        bad(
            variable,
            format!("is {text:?}"),
            format!("set it to {what}"),
        )
    })
}

/// How Slurm calls what the variable holds.
fn slurm(variable: &str) -> &'static str {
    match variable {
        "RANK" => "$SLURM_PROCID",
        "WORLD_SIZE" => "$SLURM_NTASKS",
        _ => "$SLURM_LOCALID",
    }
}

fn required<T: FromStr>(get: Get<'_>, variable: &'static str, what: &str) -> Result<T> {
    number(get, variable, what)?.ok_or_else(|| {
        let mut advice = format!("start with torchrun, or set it to {what}");
        if get("SLURM_PROCID").is_some() {
            advice = format!("under srun, set {variable}={}", slurm(variable));
        }
        bad(variable, "is not set", advice)
    })
}

pub(super) fn read(get: Get<'_>) -> Result<Rendezvous> {
    let rank: usize = required(get, "RANK", "this process's number, from 0")?;
    let world: usize = required(get, "WORLD_SIZE", "the number of processes")?;
    let local_rank: usize = required(get, "LOCAL_RANK", "this process's number on its host")?;
    let addr = text(get, "MASTER_ADDR")?.ok_or_else(|| {
        let advice = "set it to the host name or address of rank 0's host (127.0.0.1 for one host)";
        bad("MASTER_ADDR", "is not set", advice)
    })?;
    let port_is = "a TCP port, 1 to 65535, that is free on rank 0's host";
    let port: u16 = number(get, "MASTER_PORT", port_is)?
        .ok_or_else(|| bad("MASTER_PORT", "is not set", format!("set it to {port_is}")))?;
    if port == 0 {
        return Err(bad("MASTER_PORT", "is 0", format!("set it to {port_is}")));
    }
    if world == 0 || world > MAX_RANKS {
        let advice = format!("set it to 1 to {MAX_RANKS}");
        return Err(bad("WORLD_SIZE", format!("is {world}"), advice));
    }
    if rank >= world {
        let problem = format!("is {rank}, but WORLD_SIZE is {world}");
        let advice = format!("ranks are 0 to {}", world - 1);
        return Err(bad("RANK", problem, advice));
    }
    let on_host: Option<usize> = number(get, "LOCAL_WORLD_SIZE", "the processes on this host")?;
    if let Some(on_host) = on_host
        && !(1..=world).contains(&on_host)
    {
        let problem = format!("is {on_host}, but WORLD_SIZE is {world}");
        let advice = "set it to the number of processes on this host, or unset it";
        return Err(bad("LOCAL_WORLD_SIZE", problem, advice));
    }
    if local_rank >= on_host.unwrap_or(world) {
        let (of, limit) = match on_host {
            Some(on_host) => ("LOCAL_WORLD_SIZE", on_host),
            None => ("WORLD_SIZE", world),
        };
        let problem = format!("is {local_rank}, but {of} is {limit}");
        let advice = format!("local ranks are 0 to {}", limit - 1);
        return Err(bad("LOCAL_RANK", problem, advice));
    }
    let mut rendezvous = Rendezvous::new(addr, port, rank, world).local_rank(local_rank);
    rendezvous.job = job(get)?;
    rendezvous.port_taken = get("TORCHELASTIC_RUN_ID").is_some();
    Ok(rendezvous)
}

/// What the launcher calls the job. Each is the same on all ranks, and differs between jobs that
/// could use one port at one time.
fn job(get: Get<'_>) -> Result<Option<String>> {
    if let Some(id) = text(get, "MOK_JOB_ID")? {
        return Ok(Some(id));
    }
    // The second is what changes when the launcher starts the job again.
    for (variable, attempt) in [
        ("TORCHELASTIC_RUN_ID", Some("TORCHELASTIC_RESTART_COUNT")),
        ("SLURM_JOB_ID", Some("SLURM_STEP_ID")),
        ("PMIX_NAMESPACE", None),
        ("PBS_JOBID", None),
        ("LSB_JOBID", None),
        ("FLUX_JOB_ID", None),
    ] {
        if let Some(id) = text(get, variable)? {
            let attempt = match attempt {
                Some(attempt) => text(get, attempt)?.unwrap_or_default(),
                None => String::new(),
            };
            return Ok(Some(format!("{variable}={id}.{attempt}")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
    ];

    /// The good variables with some changed, or unset.
    fn with(changes: &[(&'static str, Option<&str>)]) -> Result<Rendezvous> {
        read(&|name| {
            let changed = changes.iter().find(|(changed, _)| *changed == name);
            let good = GOOD.iter().find(|(good, _)| *good == name);
            match changed {
                Some((_, value)) => value.map(OsString::from),
                None => good.map(|(_, value)| OsString::from(value)),
            }
        })
    }

    #[test]
    fn the_five_variables_are_enough() {
        let read = with(&[]).expect("good");
        assert_eq!(read, Rendezvous::new("node7", 29500, 3, 8).local_rank(1));
    }

    #[test]
    fn each_fault_names_its_variable_and_says_what_to_do() {
        let cases = [
            ("RANK", None, "is not set: start with torchrun"),
            ("RANK", Some(""), "is not set"),
            (
                "RANK",
                Some("x"),
                "is \"x\": set it to this process's number",
            ),
            ("RANK", Some("-1"), "is \"-1\""),
            (
                "RANK",
                Some("8"),
                "is 8, but WORLD_SIZE is 8: ranks are 0 to 7",
            ),
            ("WORLD_SIZE", None, "is not set"),
            ("WORLD_SIZE", Some("0"), "is 0: set it to 1 to"),
            ("WORLD_SIZE", Some("99999"), "is 99999"),
            ("WORLD_SIZE", Some("99999999999999999999999"), "is \"999"),
            ("LOCAL_RANK", None, "is not set"),
            ("LOCAL_RANK", Some("8"), "is 8, but WORLD_SIZE is 8"),
            ("LOCAL_WORLD_SIZE", Some("9"), "is 9, but WORLD_SIZE is 8"),
            ("LOCAL_WORLD_SIZE", Some("0"), "is 0"),
            ("MASTER_ADDR", None, "is not set: set it to the host name"),
            ("MASTER_PORT", None, "is not set"),
            ("MASTER_PORT", Some("0"), "is 0: set it to a TCP port"),
            ("MASTER_PORT", Some("65536"), "is \"65536\""),
        ];
        for (variable, value, text) in cases {
            let error = with(&[(variable, value)]).expect_err(variable).to_string();
            assert!(
                error.starts_with(variable) && error.contains(text),
                "{error}"
            );
        }
        let error = with(&[("LOCAL_WORLD_SIZE", Some("1"))]).expect_err("contradiction");
        let text = "LOCAL_RANK is 1, but LOCAL_WORLD_SIZE is 1: local ranks are 0 to 0";
        assert_eq!(error.to_string(), text);
        let slurm = [("SLURM_PROCID", Some("3")), ("LOCAL_RANK", None)];
        let error = with(&slurm).expect_err("not set").to_string();
        assert!(
            error.ends_with("under srun, set LOCAL_RANK=$SLURM_LOCALID"),
            "{error}"
        );
    }

    #[test]
    fn a_job_is_known_by_what_its_launcher_calls_it() {
        let job = |changes: &[(&'static str, Option<&str>)]| with(changes).expect("good").job;
        let slurm = [("SLURM_JOB_ID", Some("12")), ("SLURM_STEP_ID", Some("4"))];
        assert_eq!(job(&slurm).as_deref(), Some("SLURM_JOB_ID=12.4"));
        let torchrun = [("TORCHELASTIC_RUN_ID", Some("none")), slurm[0]];
        assert_eq!(job(&torchrun).as_deref(), Some("TORCHELASTIC_RUN_ID=none."));
        assert!(with(&torchrun).expect("good").port_taken);
        let own = [("MOK_JOB_ID", Some("mine")), torchrun[0]];
        assert_eq!(job(&own).as_deref(), Some("mine"));
    }

    #[test]
    fn a_name_that_is_not_text_is_an_error() {
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStringExt;
            let read = read(&|name| match name {
                "RANK" => Some(OsString::from_vec(vec![0xff])),
                _ => None,
            });
            assert!(
                read.expect_err("no text")
                    .to_string()
                    .starts_with("RANK isn't UTF-8")
            );
        }
    }
}
