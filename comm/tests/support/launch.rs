//! Ranks as copies of this test program, and what became of them.

use std::env;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bodies;

/// Tells a copy what to run.
const BODY: &str = "MOK_COMM_TEST_BODY";
const MARK: &str = "RESULT ";

/// Where this is a copy: does what it was started for, and ends.
pub fn run_as_rank() {
    let Ok(body) = env::var(BODY) else { return };
    let result = bodies::run_process(&body);
    // On a line of its own, whatever the harness wrote before.
    println!("\n{MARK}{}", result.replace('\n', " | "));
    std::process::exit(0);
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A job's id that no other test has.
pub fn job_id() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test {} {next}", std::process::id())
}

/// What a launcher would set.
#[derive(Clone, Debug)]
pub struct Job {
    pub world: usize,
    pub port: u16,
    pub addr: &'static str,
    pub id: Option<String>,
    pub deadline_ms: u64,
    pub more: Vec<(&'static str, String)>,
}

impl Job {
    pub fn of(world: usize) -> Job {
        Job {
            world,
            port: free_port(),
            addr: "127.0.0.1",
            id: Some(job_id()),
            deadline_ms: 20_000,
            more: Vec::new(),
        }
    }

    /// Starts one rank.
    pub fn start(&self, rank: usize, body: &str) -> Rank {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command
            .args(crate::CHILD_ARGS)
            .env(BODY, body)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", self.world.to_string())
            .env("MASTER_ADDR", self.addr)
            .env("MASTER_PORT", self.port.to_string())
            .env("MOK_COMM_TEST_DEADLINE_MS", self.deadline_ms.to_string())
            .env("RUST_TEST_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // What started these tests is not what starts the job.
        for name in ["MOK_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"] {
            command.env_remove(name);
        }
        if let Some(id) = &self.id {
            command.env("MOK_JOB_ID", id);
        }
        command.envs(self.more.iter().map(|(name, value)| (name, value)));
        let child = command.spawn().expect("a process");
        Rank { child, rank }
    }

    pub fn start_all(&self, body: &str) -> Vec<Rank> {
        (0..self.world).map(|rank| self.start(rank, body)).collect()
    }

    /// Runs all ranks to their end.
    pub fn run(&self, body: &str) -> Vec<String> {
        finish(self.start_all(body))
    }
}

/// A running rank; killed when dropped.
pub struct Rank {
    pub rank: usize,
    pub child: Child,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    pub fn kill(&mut self) {
        self.child.kill().expect("a running process");
    }

    /// Its result, or how it ended without one. Fails the test after `within`.
    pub fn result(mut self, within: Duration) -> String {
        let until = Instant::now() + within;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > until {
                self.kill();
                let (out, err) = self.output();
                panic!("rank {} hangs:\n{out}\n{err}", self.rank);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let (out, err) = self.output();
        match out.lines().find_map(|line| line.strip_prefix(MARK)) {
            Some(result) => result.to_owned(),
            None => format!("no result, {status}: {out} {err}"),
        }
    }

    fn output(&mut self) -> (String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        if let (Some(stdout), Some(stderr)) = (&mut self.child.stdout, &mut self.child.stderr) {
            let _ = stdout.read_to_string(&mut out);
            let _ = stderr.read_to_string(&mut err);
        }
        (out, err)
    }
}

/// The results of all.
pub fn finish(ranks: Vec<Rank>) -> Vec<String> {
    ranks
        .into_iter()
        .map(|rank| rank.result(Duration::from_secs(30)))
        .collect()
}

/// Runs the ranks as threads of this process.
pub fn run_threads(world: usize, body: &str) -> Vec<String> {
    let groups = mok_comm::Group::threads(world).expect("groups");
    let run = |group: mok_comm::Group| {
        let rank = group.rank();
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bodies::run(body, group)));
        result.unwrap_or_else(|_| format!("rank {rank} panicked"))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || run(group)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}
