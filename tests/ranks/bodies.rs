//! What one rank does.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use mok::layer::{Group, LayerError, MoeConfig, Transport};
use mok::{Device, EmulatorConfig};
use mok_comm::Rendezvous;
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::Rank;

type Outcome<T = String> = Result<T, Box<dyn Error>>;

/// Said once passes are being made.
pub const RUNNING: &str = "passes are running";

/// Where a rank runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Emulated,
    Gpu,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Passes, whose bits must be those of one rank.
    Bits,
    /// The same, after ranks were killed.
    Afterwards,
    /// The last rank comes too late, and all recover.
    Late,
    /// Bad input, and all recover.
    Errors,
    /// A captured pass is replayed, or its capture refused.
    Graph,
    /// Passes until another rank is gone.
    Survive,
    /// GPUs that can't reach each other.
    Unreachable,
}

/// A rank's task; its text goes into the rank's environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Body {
    pub what: What,
    pub kind: Kind,
    pub transport: Transport,
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.what, self.kind, self.transport)
    }
}

impl Body {
    fn parse(text: &str) -> Option<Body> {
        use What::*;
        let whats = [Bits, Afterwards, Late, Errors, Graph, Survive, Unreachable];
        let all = whats.into_iter().flat_map(|what| {
            let kinds = [Kind::Emulated, Kind::Gpu].into_iter();
            kinds.flat_map(move |kind| {
                [Transport::Peer, Transport::Nccl].map(|transport| Body {
                    what,
                    kind,
                    transport,
                })
            })
        });
        all.into_iter().find(|body| body.to_string() == text)
    }
}

/// Joins the job of the environment, then runs a body.
pub fn run_process(body: &str) -> String {
    let joined = Rendezvous::from_env()
        .and_then(|rendezvous| Group::connect(&rendezvous.deadline(Duration::from_secs(30))));
    match joined {
        Ok(group) => run(body, group),
        Err(error) => format!("join: {error}"),
    }
}

/// Runs a body: `ok` with what it says, or the error.
pub fn run(text: &str, group: Group) -> String {
    let ran = || -> Outcome {
        let body = Body::parse(text).ok_or("no such body")?;
        group.set_timeout(Duration::from_secs(60));
        let device = match body.kind {
            Kind::Gpu => Device::cuda(group.local_rank())?,
            Kind::Emulated => Device::emulated(EmulatorConfig {
                sms: 2,
                ..EmulatorConfig::default()
            })?,
        };
        let task = Task {
            body,
            device,
            group: Arc::new(group),
        };
        match body.what {
            What::Bits | What::Afterwards => task.bits(),
            What::Late => task.late(),
            What::Errors => task.errors(),
            What::Graph => task.graph(),
            What::Survive => task.survive(),
            What::Unreachable => task.unreachable(),
        }
    };
    match ran() {
        Ok(said) => format!("ok {said}"),
        Err(error) => error.to_string(),
    }
}

struct Task {
    body: Body,
    device: Device,
    group: Arc<Group>,
}

/// The error of the layer in a result.
fn of_layer<T>(result: mok::Result<T>) -> Outcome<LayerError> {
    match result {
        Err(mok::Error::Layer(error)) => Ok(error),
        Err(other) => Err(format!("not an error of the layer: {other}").into()),
        Ok(_) => Err("no error".into()),
    }
}

fn expect(holds: bool, what: impl fmt::Display) -> Outcome<()> {
    match holds {
        true => Ok(()),
        false => Err(what.to_string().into()),
    }
}

impl Task {
    fn small(&self) -> MoeConfig {
        MoeConfig::new(6, 64, 64, 2, 9).with_transport(self.body.transport)
    }

    fn rank(&self, config: MoeConfig) -> Outcome<Rank> {
        let tokens = vec![config.max_tokens as usize; self.group.world_size()];
        let problem = Problem::new(config, &tokens, Routing::Loose, 5);
        Ok(Rank::new(&problem, &self.device, &self.group)?)
    }

    fn problems(&self) -> Vec<Problem> {
        let ranks = self.group.world_size();
        let tokens =
            |each: &[usize]| -> Vec<usize> { each.iter().copied().cycle().take(ranks).collect() };
        let small = |experts, routing, each: &[usize]| {
            let config = MoeConfig::new(experts, 128, 64, 3, 12).with_shared(64);
            Problem::new(config, &tokens(each), routing, 3)
        };
        let mut problems = vec![
            small(5, Routing::Loose, &[12, 7, 0]),
            small(1, Routing::OneExpert, &[0, 9]),
            small(4, Routing::Nobody, &[3, 1]),
        ];
        if self.body.kind == Kind::Gpu {
            let wide = MoeConfig::new(37, 1792, 448, 5, 900).with_shared(320);
            let many = MoeConfig::new(128, 512, 256, 8, 4096);
            problems.push(Problem::new(wide, &tokens(&[900, 513]), Routing::Zipf, 4));
            problems.push(Problem::new(
                many,
                &tokens(&[4096, 4000]),
                Routing::Uniform,
                5,
            ));
        }
        problems
    }

    fn bits(&self) -> Outcome {
        let times = if self.body.kind == Kind::Gpu { 20 } else { 2 };
        let problems = self.problems();
        for problem in &problems {
            let rank = self.group.rank();
            let hidden = problem.config.hidden as usize;
            let total = problem.tokens.iter().sum();
            let alone = problem.split(&[total]).alone();
            let single = Arc::new(Group::threads(1)?.remove(0));
            let expected = alone.run(&self.device, &single, 1)?.remove(0);
            let start = problem.start(rank) * hidden;
            let own = &expected[start..start + problem.tokens[rank] * hidden];
            let exchanged = problem.clone().by(self.body.transport);
            for (time, output) in exchanged
                .run(&self.device, &self.group, times)?
                .iter()
                .enumerate()
            {
                let config = &problem.config;
                expect(
                    output == own,
                    format!("pass {time} differs from one rank's: {config:?}"),
                )?;
            }
        }
        Ok(format!("{} problems", problems.len()))
    }

    fn late(&self) -> Outcome {
        let deadline = Duration::from_secs(2);
        let mut rank = self.rank(self.small().with_deadlines(deadline, deadline))?;
        rank.pass()?;
        let last = self.group.world_size() - 1;
        if self.group.rank() == last {
            std::thread::sleep(2 * deadline);
        } else {
            let error = of_layer(rank.pass())?;
            let named = match &error {
                LayerError::Deadline { rank, .. } => *rank as usize == last,
                LayerError::Late { ranks, .. } => ranks == &[last as u32],
                LayerError::Aborted { .. } => self.group.world_size() > 2,
                _ => false,
            };
            expect(named, &error)?;
        }
        rank.workspace.recover()?;
        rank.pass()?;
        self.group.barrier()?;
        Ok(String::new())
    }

    fn errors(&self) -> Outcome {
        let mut rank = self.rank(self.small())?;
        let good = rank.topk_experts.to_vec()?;
        let mut bad = good.clone();
        bad[3] = 6;
        if self.group.rank() == 1 {
            rank.topk_experts.copy_from(&bad)?;
        }
        let error = of_layer(rank.pass())?;
        let expected = matches!(
            error,
            LayerError::BadExpert {
                rank: 1,
                token: 1,
                k: 1,
                expert: 6,
                ..
            }
        );
        expect(expected, &error)?;
        rank.workspace.recover()?;
        rank.topk_experts.copy_from(&good)?;
        rank.pass()?;
        // A check on one rank's host is told to the others.
        let error = match self.group.rank() {
            1 => of_layer(
                rank.schedule(10)
                    .and_then(|()| rank.workspace.synchronize(&rank.stream)),
            )?,
            _ => of_layer(rank.pass())?,
        };
        let told = matches!(&error, LayerError::Aborted { rank: 1, .. })
            || error.to_string().contains("tokens is 10");
        expect(told, &error)?;
        rank.workspace.recover()?;
        rank.pass()?;
        self.group.barrier()?;
        Ok(String::new())
    }

    fn graph(&self) -> Outcome {
        let mut rank = self.rank(self.small())?;
        let first = rank.output()?;
        rank.stream.begin_capture()?;
        let captured = rank.schedule(9).and_then(|()| rank.forward());
        let graph = rank.stream.end_capture();
        if self.body.transport == Transport::Nccl {
            let error = of_layer(captured)?;
            expect(error == LayerError::Captured, &error)?;
            rank.workspace.recover()?;
            expect(
                rank.output()? == first,
                "other bits after a refused capture",
            )?;
            self.group.barrier()?;
            return Ok("refused".into());
        }
        captured?;
        let graph = graph?;
        let x = rank.x.to_vec()?;
        for round in 0..100 {
            let mut other = x.clone();
            other.rotate_left(64 * round % x.len());
            rank.x.copy_from(&other)?;
            let expected = rank.output()?;
            rank.out.fill(0xff)?;
            graph.launch(&rank.stream)?;
            rank.workspace.synchronize(&rank.stream)?;
            expect(
                rank.out.to_vec()? == expected,
                format!("replay {round} gives other bits"),
            )?;
        }
        self.group.barrier()?;
        Ok("100 replays".into())
    }

    fn survive(&self) -> Outcome {
        let mut rank = self.rank(self.small())?;
        let first = rank.output()?;
        println!("\n{RUNNING}");
        std::io::stdout().flush()?;
        let failed = loop {
            match rank.output() {
                Ok(output) => expect(output == first, "other bits")?,
                Err(error) => break error,
            }
        };
        // The device is still good.
        let copy = self.device.buffer_from(&[1u32, 2, 3])?.to_vec()?;
        expect(copy == [1, 2, 3], "the device is broken")?;
        let recovered = rank.workspace.recover();
        expect(recovered.is_err(), "recovered without the lost rank")?;
        Ok(failed.to_string())
    }

    fn unreachable(&self) -> Outcome {
        let made = mok::layer::Workspace::new(&self.device, &self.group, &self.small());
        let text = made.err().ok_or("a workspace")?.to_string();
        expect(text.contains("Transport::Nccl"), &text)?;
        Ok(text)
    }
}
