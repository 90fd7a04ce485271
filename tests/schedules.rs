//! Random schedules: sessions that are fed, stepped, forked, saved, loaded, marked, rewound, cancelled and reset, in any order, by several
//! threads at once and on two devices, end with the same bits as a single session that reads the same tokens. The second device is a GPU
//! with `WATERLINE_DEVICE=cuda`, or the GPU kernels on the CPU with `WATERLINE_DEVICE=emulator` and the feature `emulator`.
//! WATERLINE_SCHEDULES is the number of calls of each thread on each model, WATERLINE_SEED the first seed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use waterline::{
    Canceller, Device, Error, Kv, Model, Pool, Session, SessionOptions, Snapshot, StateOptions,
};

const THREADS: u64 = 3;
const SESSIONS: usize = 5;
const MARKS: usize = 2;
/// The number of tokens that full attention can look back on; the history that a session remembers follows.
const CONTEXT: usize = 120;
const HISTORY: usize = 60;
/// The number of tokens after which a session is reset, so that replays stay short.
const LONG: usize = 150;

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A repeatable sequence of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// A model and its devices: the CPU, and a second device if there is one.
struct Place {
    model: Arc<Model>,
    pool: Arc<Pool>,
    devices: Vec<Option<Arc<Device>>>,
}

/// The second device, if any.
fn device() -> Option<Arc<Device>> {
    match std::env::var("WATERLINE_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::open(0).expect("a GPU")),
        #[cfg(feature = "emulator")]
        Ok("emulator") => Some(Device::emulated()),
        _ => None,
    }
}

impl Place {
    fn session(&self, device: usize, pool: Option<&Arc<Pool>>) -> Session {
        let mut options = SessionOptions::default();
        let mut state = StateOptions::default();
        (state.context, state.history, state.kv) = (CONTEXT, HISTORY, Kv::F16);
        options.state = state;
        (options.chunk, options.marks, options.threads) = (8, MARKS, 1);
        (options.sampler.temperature, options.sampler.seed) = (0.9, 5);
        options.pool = pool.cloned();
        options.device = self.devices[device].clone();
        Session::new(Arc::clone(&self.model), options).expect("a session")
    }
}

/// An action of the replay that reaches a session's position.
#[derive(Clone, PartialEq)]
enum Act {
    /// Makes the session on a device, or moves its state there.
    On(usize),
    Feed(Vec<u32>),
    Step(u32),
}

/// The actions and tokens that lead to a session's position.
#[derive(Clone)]
struct Record {
    acts: Vec<Act>,
    tokens: Vec<u32>,
}

impl Record {
    fn new(device: usize) -> Self {
        Record {
            acts: vec![Act::On(device)],
            tokens: Vec::new(),
        }
    }

    fn fed(&mut self, tokens: &[u32]) {
        if !tokens.is_empty() {
            self.tokens.extend_from_slice(tokens);
            self.acts.push(Act::Feed(tokens.to_vec()));
        }
    }

    fn moved(&self, device: usize) -> Self {
        let mut moved = self.clone();
        moved.acts.push(Act::On(device));
        moved
    }

    /// Returns the state of a single session, on one thread, that replays the actions.
    fn replayed(&self, place: &Place) -> Vec<u8> {
        let mut lone: Option<Session> = None;
        for act in &self.acts {
            match (act, &mut lone) {
                (Act::On(device), before) => {
                    let mut session = place.session(*device, None);
                    if let Some(before) = before {
                        let snapshot = before.snapshot().expect("a snapshot");
                        session.restore(&snapshot).expect("the same layout");
                    }
                    lone = Some(session);
                }
                (Act::Feed(tokens), Some(session)) => session.feed(tokens).expect("tokens"),
                (Act::Step(token), Some(session)) => {
                    assert_eq!(session.step().expect("a step"), *token)
                }
                (_, None) => unreachable!("a record begins on a device"),
            }
        }
        bytes(&lone.expect("a record begins on a device"))
    }
}

fn bytes(session: &Session) -> Vec<u8> {
    let mut file = Vec::new();
    let snapshot = session.snapshot().expect("a snapshot");
    snapshot.write(&mut file).expect("memory");
    file
}

struct Actor {
    session: Session,
    device: usize,
    record: Record,
    marks: Vec<Record>,
}

impl Actor {
    fn new(place: &Place, device: usize) -> Self {
        Actor {
            session: place.session(device, Some(&place.pool)),
            device,
            record: Record::new(device),
            marks: Vec::new(),
        }
    }

    /// Makes one random call; saved sessions are added to `saved`.
    fn act(&mut self, random: &mut Random, place: &Place, saved: &Mutex<Vec<(Vec<u8>, Record)>>) {
        let vocab = self.session.model().spec().vocab;
        let here = self.record.tokens.len();
        match random.below(if here > LONG { 1 } else { 12 }) {
            0 if here > LONG / 3 => {
                self.session.reset().expect("a reset");
                self.record = Record::new(self.device);
                self.marks.clear();
            }
            1 => self.mark(),
            2 | 3 => self.rewind(random.below(here + 3)),
            4 => {
                let record = self.record.clone();
                let file = bytes(&self.session);
                let mut saved = saved.lock().expect("saved");
                match saved.len() {
                    0..4 => saved.push((file, record)),
                    n => saved[random.below(n)] = (file, record),
                }
            }
            5 => {
                let taken = {
                    let saved = saved.lock().expect("saved");
                    saved.get(random.below(saved.len())).cloned()
                };
                if let Some((file, record)) = taken {
                    let size = file.len() as u64;
                    let snapshot = Snapshot::read(&mut &file[..], size, "saved").expect("whole");
                    self.session.restore(&snapshot).expect("the same layout");
                    self.record = record.moved(self.device);
                    self.marks.clear();
                }
            }
            6 => {
                let fork = self.session.fork().expect("a fork");
                self.session = fork;
                self.marks.clear();
            }
            7 => {
                let device = random.below(place.devices.len());
                let mut moved = Actor::new(place, device);
                let snapshot = self.session.snapshot().expect("a snapshot");
                moved.session.restore(&snapshot).expect("the same layout");
                moved.record = self.record.moved(device);
                *self = moved;
            }
            8 | 9 if here > 0 => self.step(),
            _ => {
                let count = 1 + random.below(30);
                let tokens: Vec<u32> = (0..count).map(|_| random.below(vocab) as u32).collect();
                self.feed(&tokens);
            }
        }
        assert_eq!(self.session.position(), self.record.tokens.len() as u64);
    }

    fn feed(&mut self, tokens: &[u32]) {
        match self.session.feed(tokens) {
            Ok(()) => self.record.fed(tokens),
            Err(Error::Cancelled { fed }) => self.record.fed(&tokens[..fed]),
            Err(Error::ContextFull { .. }) => {
                assert!(self.record.tokens.len() + tokens.len() > CONTEXT)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self) {
        match self.session.step() {
            Ok(token) => {
                self.record.tokens.push(token);
                self.record.acts.push(Act::Step(token));
            }
            Err(Error::Cancelled { fed: 0 }) => (),
            Err(Error::ContextFull { .. }) => assert!(self.record.tokens.len() + 1 > CONTEXT),
            Err(error) => panic!("{error}"),
        }
    }

    fn mark(&mut self) {
        self.session.mark().expect("a mark");
        let here = self.record.tokens.len();
        self.marks.retain(|mark| mark.tokens.len() < here);
        if self.marks.len() == MARKS {
            self.marks.remove(0);
        }
        self.marks.push(self.record.clone());
    }

    fn rewind(&mut self, position: usize) {
        let here = self.record.tokens.len();
        let behind = |mark: &&Record| mark.tokens.len() <= position;
        let mark = self.marks.iter().rev().find(behind).cloned();
        let mut to = mark.unwrap_or_else(|| Record::new(self.device));
        let from = to.tokens.len();
        let possible = position <= here && (from == position || from + HISTORY >= here);
        match self.session.rewind(position as u64) {
            Ok(()) if position == here => (),
            Ok(()) => {
                assert!(possible, "{position} of {here} from {from}");
                to.fed(&self.record.tokens[from..position]);
                self.record = to;
                self.marks.retain(|mark| mark.tokens.len() <= position);
            }
            Err(Error::Rewind { .. }) => assert!(!possible, "{position} of {here} from {from}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a schedule on a model; returns the number of states compared.
fn run(name: &str, place: &Place, seed: u64, calls: u64) -> usize {
    let actor = |i| Actor::new(place, i % place.devices.len());
    let actors = Mutex::new((0..SESSIONS).map(actor).collect::<Vec<_>>());
    let cancellers: Mutex<Vec<Canceller>> = Mutex::default();
    let (saved, over) = (Mutex::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (actors, saved, cancellers) = (&actors, &saved, &cancellers);
                scope.spawn(move || {
                    let mut random = Random((seed << 20) + thread);
                    for _ in 0..calls {
                        let mut actor = {
                            let mut actors = actors.lock().expect("actors");
                            let at = random.below(actors.len());
                            actors.swap_remove(at)
                        };
                        let canceller = actor.session.canceller();
                        cancellers.lock().expect("cancellers").push(canceller);
                        actor.act(&mut random, place, saved);
                        actors.lock().expect("actors").push(actor);
                    }
                })
            })
            .collect();
        // Cancels running calls at random times.
        let (cancellers, over) = (&cancellers, &over);
        scope.spawn(move || {
            let mut random = Random(!seed);
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_micros(random.below(900) as u64));
                let mut all = cancellers.lock().expect("cancellers");
                if random.below(4) == 0 && !all.is_empty() {
                    all[random.below(all.len())].cancel();
                }
                if all.len() > 20 {
                    all.drain(..10);
                }
            }
        });
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::Relaxed);
        for end in ended {
            end.unwrap_or_else(|_| panic!("{name}: seed {seed}"));
        }
    });
    let actors = actors.into_inner().expect("actors");
    for (number, actor) in actors.iter().enumerate() {
        let same = bytes(&actor.session) == actor.record.replayed(place);
        assert!(same, "{name}: seed {seed}, session {number}");
    }
    actors.len()
}

#[test]
fn any_schedule_ends_where_a_lone_run_ends() {
    let (calls, seed) = (
        number("WATERLINE_SCHEDULES", 60),
        number("WATERLINE_SEED", 1),
    );
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let entries = ["fixtures", "models"].map(|folder| std::fs::read_dir(tests.join(folder)));
    let paths = entries.into_iter().flat_map(|all| all.expect("a folder"));
    let mut paths: Vec<PathBuf> = paths.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.is_dir() || path.extension() == Some("gguf".as_ref()));
    paths.sort();
    let (mut compared, device) = (0, device());
    for path in &paths {
        let name = path.file_name().expect("a name").to_string_lossy();
        // One model for each kind of state; a device would first have to compile the kernels of all models.
        let one_of_each = ["gdn_swa", "lalte_stream_gqa", "hax_mamba_argmax_ks_stream"];
        if device.is_some() && !one_of_each.contains(&&*name) {
            continue;
        }
        let place = Place {
            model: Model::open(path).expect("a model"),
            pool: Arc::new(Pool::new(3).expect("threads")),
            devices: [None].into_iter().chain(device.clone().map(Some)).collect(),
        };
        compared += run(&name, &place, seed, calls);
    }
    println!(
        "{} models, {calls} calls on each of {THREADS} threads, {compared} states compared",
        paths.len()
    );
    assert!(compared >= 3 * SESSIONS);
}
