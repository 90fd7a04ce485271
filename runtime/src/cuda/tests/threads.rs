//! Sixteen sessions of one model on one device, by eight threads, each step one kernel whose blocks wait for each other, while
//! another thread cancels: every session says what it says alone. `WATERLINE_SECONDS` is how long, for a GPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::cuda::Device;
use crate::engine::StepProgram;
use crate::error::Error;
use crate::model::Model;
use crate::session::{Canceller, Session, SessionOptions};

const SESSIONS: usize = 16;
const THREADS: usize = 8;
/// Tokens that a turn reads and chooses.
const TURN: usize = 2;

fn session(model: &Arc<Model>, device: &Arc<Device>) -> Session {
    let options = SessionOptions {
        chunk: 8,
        threads: 1,
        step: StepProgram::Persistent,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    Session::new(Arc::clone(model), options).expect("a session")
}

/// What a session has said.
struct Said {
    session: Session,
    number: usize,
    turns: usize,
    tokens: Vec<u32>,
}

impl Said {
    /// Reads a chunk and chooses tokens, however often it is cancelled.
    fn turn(&mut self) {
        let first = self.number + self.turns;
        let prompt: Vec<u32> = (0..TURN).map(|i| ((first * 5 + i) % 32) as u32).collect();
        let mut fed = 0;
        while fed < TURN {
            match self.session.feed(&prompt[fed..]) {
                Ok(()) => fed = TURN,
                Err(Error::Cancelled { fed: part }) => fed += part,
                Err(error) => panic!("{error}"),
            }
        }
        let mut left = TURN;
        while left > 0 {
            match self.session.step() {
                Ok(token) => {
                    self.tokens.push(token);
                    left -= 1;
                }
                Err(Error::Cancelled { .. }) => (),
                Err(error) => panic!("{error}"),
            }
        }
        self.turns += 1;
    }
}

#[test]
fn sessions_of_many_threads_say_what_they_say_alone() {
    let Ok(device) = Device::open(0) else {
        crate::skipped::skipped("GPU");
        return;
    };
    let seconds = std::env::var("WATERLINE_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gdn_swa");
    let model = Model::open(model).expect("a model");
    let said = |number| Said {
        session: session(&model, &device),
        number,
        turns: 0,
        tokens: Vec::new(),
    };
    let all: Vec<Mutex<Said>> = (0..SESSIONS).map(|n| Mutex::new(said(n))).collect();
    let cancellers: Vec<Canceller> = (all.iter())
        .map(|said| said.lock().expect("a session").session.canceller())
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cancellers.iter().for_each(Canceller::cancel);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let all = &all;
                scope.spawn(move || {
                    let mut turn = 0;
                    while turn < SESSIONS / THREADS || Instant::now() < end {
                        let number = (thread + turn * THREADS + turn / 2) % SESSIONS;
                        all[number].lock().expect("a session").turn();
                        turn += 1;
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "a thread panicked");
    });
    let mut turns = 0;
    for together in all {
        let together = together.into_inner().expect("a session");
        let mut alone = said(together.number);
        while alone.turns < together.turns {
            alone.turn();
        }
        assert_eq!(alone.tokens, together.tokens, "session {}", alone.number);
        turns += alone.turns;
    }
    println!("{turns} turns");
}
