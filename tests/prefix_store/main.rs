//! Random edits of histories in sessions that share a prefix store: whichever checkpoints a session restores, its bits equal those of a
//! fresh session that reads the same tokens on the same grid. The store never holds more bytes than its bound, and a damaged directory only
//! costs rereading tokens. The device is a GPU with `WATERLINE_DEVICE=cuda`, or the GPU kernels on the CPU with `WATERLINE_DEVICE=emulator`
//! and the feature `emulator`. WATERLINE_HISTORIES is the number of schedules per model, WATERLINE_SEED the first seed; WATERLINE_MODELS
//! names the models, by default all of them.

mod directory;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(target_os = "linux")]
#[path = "../fault_shim.rs"]
mod fault_shim;
#[cfg(target_os = "linux")]
#[path = "../skipped.rs"]
mod skipped;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use waterline::internal::grid_of;
use waterline::{Device, Error, Model, PrefixStore, PrefixStoreOptions, Session, SessionOptions};

/// The number of tokens that full attention can look back on; the history that a session remembers follows.
const CONTEXT: usize = 200;
const HISTORY: usize = 90;

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

    fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

fn models() -> Vec<(String, Arc<Model>)> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let entries = ["fixtures", "models"].map(|folder| std::fs::read_dir(tests.join(folder)));
    let paths = entries.into_iter().flat_map(|all| all.expect("a folder"));
    let mut paths: Vec<PathBuf> = paths.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.is_dir() || path.extension() == Some("gguf".as_ref()));
    paths.sort();
    let name = |path: &Path| {
        path.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    let open = |path: &PathBuf| (name(path), Model::open(path).expect("a model"));
    paths.iter().map(open).collect()
}

/// Opened once, because opening a GPU takes a while.
fn device() -> Option<Arc<Device>> {
    static DEVICE: OnceLock<Option<Arc<Device>>> = OnceLock::new();
    let open = || match std::env::var("WATERLINE_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::open(0).expect("a GPU")),
        #[cfg(feature = "emulator")]
        Ok("emulator") => Some(Device::emulated()),
        _ => None,
    };
    DEVICE.get_or_init(open).clone()
}

fn session(
    model: &Arc<Model>,
    device: &Option<Arc<Device>>,
    store: Option<&Arc<PrefixStore>>,
) -> Session {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (CONTEXT, HISTORY);
    (options.chunk, options.threads, options.marks) = (24, 1, 1);
    (options.sampler.temperature, options.sampler.seed) = (0.0, 5);
    options.device = device.clone();
    options.store = store.cloned();
    Session::new(Arc::clone(model), options).expect("a session")
}

fn store(bytes: usize, grid: usize, directory: Option<&Path>) -> Arc<PrefixStore> {
    let mut options = PrefixStoreOptions::default();
    (options.bytes, options.grid) = (bytes, grid);
    options.directory = directory.map(Path::to_path_buf);
    PrefixStore::new(options).expect("a store")
}

fn state(session: &Session) -> Vec<u8> {
    let mut file = Vec::new();
    let snapshot = session.snapshot().expect("a snapshot");
    snapshot.write(&mut file).expect("memory");
    file
}

/// A session and the tokens it has read.
struct Actor {
    session: Session,
    tokens: Vec<u32>,
    /// The positions where a chunk or a step ended.
    ends: Vec<u64>,
}

/// All sequences of chunk ends by which a session reached a position.
#[derive(Default)]
struct Ways(HashMap<u64, Vec<Vec<u64>>>);

impl Ways {
    fn add(&mut self, ends: &[u64]) {
        for (index, end) in ends.iter().enumerate() {
            let ways = self.0.entry(*end).or_default();
            let way = &ends[..=index];
            if !ways.iter().any(|known| known == way) {
                ways.push(way.to_vec());
            }
        }
    }

    /// Returns the sequence of ends to `position` that, continued by `after`, follows the grid.
    fn find(&self, position: u64, after: &[u64], grid: u64) -> Vec<u64> {
        let none = [Vec::new()];
        let ways = match position {
            0 => &none[..],
            _ => self.0.get(&position).map_or(&none[..0], |ways| ways),
        };
        let longer = ways.iter().map(|way| [way, after].concat());
        let mut found = longer.filter(|way| grid_of(way) == grid);
        found.next().expect("a checkpoint came from a session")
    }
}

impl Actor {
    fn new(session: Session) -> Self {
        Actor {
            session,
            tokens: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Reads a history with a border; checks that chunks end as the store documents.
    fn read(&mut self, tokens: Vec<u32>, border: usize, grid: usize, ways: &mut Ways) {
        let read = self
            .session
            .read_history_with(&tokens, &[border], |_, _| ());
        let read = read.expect("a history");
        assert_eq!(read.reused + read.read, tokens.len());
        let (mut at, mut after) = (read.reused, Vec::new());
        while at < tokens.len() {
            let mut end = (at + 24).min((at / grid + 1) * grid).min(tokens.len());
            if border > at {
                end = end.min(border);
            }
            after.push(end as u64);
            at = end;
        }
        self.ends = ways.find(read.reused as u64, &after, self.session.grid());
        ways.add(&self.ends);
        self.tokens = tokens;
    }

    fn step(&mut self, ways: &mut Ways) {
        match self.session.step() {
            Ok(token) => {
                self.tokens.push(token);
                self.ends.push(self.tokens.len() as u64);
                ways.add(&self.ends);
            }
            Err(Error::ContextFull { .. }) => assert_eq!(self.tokens.len(), CONTEXT),
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the state of an empty session that reads the same tokens with the same chunks.
    fn fresh(&self, session: &mut Session) -> Vec<u8> {
        session.reset().expect("an empty state");
        let mut start = 0;
        for &end in &self.ends {
            session
                .feed(&self.tokens[start..end as usize])
                .expect("a chunk");
            start = end as usize;
        }
        state(session)
    }
}

/// Returns a history with the same beginning, edited as clients do.
fn edited(tokens: &[u32], random: &mut Random, vocab: usize) -> Vec<u32> {
    let mut edited = tokens.to_vec();
    let at = random.below(tokens.len() + 1);
    match random.below(5) {
        0 => {}
        1 => edited.truncate(at),
        2 if at < tokens.len() => edited[at] = random.below(vocab) as u32,
        3 => {
            let end = (at + random.below(20)).min(tokens.len());
            edited.drain(at..end);
        }
        _ => {
            let count = 1 + random.below(40);
            edited.extend(random.tokens(count, vocab));
        }
    }
    if edited.is_empty() || random.below(9) == 0 {
        let count = 1 + random.below(CONTEXT - 20);
        edited = random.tokens(count, vocab);
    }
    edited.truncate(CONTEXT);
    edited
}

/// Runs one schedule on a model; returns the numbers of states compared and of tokens reused.
fn run(name: &str, model: &Arc<Model>, seed: u64, folder: &Path) -> (usize, u64) {
    let (mut random, device) = (Random(seed), device());
    let vocab = model.spec().vocab;
    let grid = 8 + random.below(60);
    // Some stores hold a few checkpoints, others none.
    let mut fresh = session(model, &device, None);
    let state_bytes = fresh.state_bytes();
    let bound = [usize::MAX, 12 * state_bytes, 3 * state_bytes, 100][random.below(4)];
    let directory = (random.below(3) == 0).then_some(folder);
    let mut shared = store(bound, grid, directory);
    let mut actors: Vec<Actor> = (0..3)
        .map(|_| Actor::new(session(model, &device, Some(&shared))))
        .collect();
    let (mut ways, mut compared) = (Ways::default(), 0);
    let mut reused = 0;
    for _ in 0..10 {
        let index = random.below(actors.len());
        let history = edited(&actors[random.below(3)].tokens, &mut random, vocab);
        let border = random.below(history.len());
        let actor = &mut actors[index];
        actor.read(history, border, grid, &mut ways);
        assert!(
            shared.stats().bytes <= bound,
            "{} of {bound}",
            shared.stats().bytes
        );
        for _ in 0..[0, 0, 3, 12][random.below(4)] {
            actor.step(&mut ways);
        }
        if random.below(3) == 0 {
            actor.session.checkpoint().expect("a checkpoint");
            assert!(shared.stats().bytes <= bound);
        }
        if random.below(6) == 0 {
            let fork = actor.session.fork().expect("a fork");
            actor.session = fork;
        }
        if random.below(8) == 0 {
            let saved = actor.session.snapshot().expect("a snapshot");
            actor.session.restore(&saved).expect("the same layout");
        }
        let same = state(&actor.session) == actor.fresh(&mut fresh);
        assert!(
            same,
            "{name}: seed {seed}, grid {grid}, bound {bound}, {directory:?}"
        );
        compared += 1;
        if directory.is_some() && random.below(4) == 0 {
            shared.flush();
            damage(folder, &mut random);
            reused += shared.stats().reused_tokens;
            // Simulates another process.
            shared = store(bound, grid, directory);
            for actor in &mut actors {
                *actor = Actor::new(session(model, &device, Some(&shared)));
            }
        }
    }
    assert!(
        shared
            .take_notes()
            .iter()
            .all(|note| note.contains("ignored"))
    );
    (compared, reused + shared.stats().reused_tokens)
}

/// Damages the files of a directory in one way, or not at all.
fn damage(folder: &Path, random: &mut Random) {
    let mut files = directory::checkpoints(folder);
    files.sort();
    let Some(file) = files.get(random.below(files.len())) else {
        return;
    };
    let mut bytes = std::fs::read(file).expect("a file");
    match random.below(6) {
        0 => std::fs::remove_file(file).expect("removed"),
        1 => {
            bytes.truncate(random.below(bytes.len()));
            std::fs::write(file, bytes).expect("cut");
        }
        2 => {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
            std::fs::write(file, bytes).expect("changed");
        }
        3 => {
            let other = folder.join(format!("{:016x}.prefix", random.below(1 << 30)));
            std::fs::copy(file, other).expect("copied");
        }
        _ => {}
    }
}

#[test]
fn edited_histories_have_the_bits_of_a_fresh_reading() {
    let (schedules, seed) = (
        number("WATERLINE_HISTORIES", 2),
        number("WATERLINE_SEED", 1),
    );
    let (mut compared, mut reused, mut models_run) = (0, 0, 0);
    let chosen = std::env::var("WATERLINE_MODELS").ok();
    let is_chosen = |name: &str| {
        let chosen = chosen.as_deref();
        chosen.is_none_or(|chosen| chosen.split(',').any(|chosen| chosen == name))
    };
    for (name, model) in models() {
        if !is_chosen(&name) {
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        for schedule in 0..schedules {
            let (states, tokens) = run(&name, &model, seed + schedule, folder.path());
            (compared, reused) = (compared + states, reused + tokens);
        }
        models_run += 1;
        println!("{name}: {compared} states compared so far");
    }
    println!("{models_run} models, {compared} states compared, {reused} tokens reused");
    assert!(compared as u64 >= 10 * schedules * models_run && reused > compared as u64);
}

#[test]
fn a_store_as_it_comes_has_a_checkpoint_at_every_256_tokens() {
    let (_, model) = models()
        .into_iter()
        .find(|(name, _)| name == "gdn_plain")
        .expect("a fixture");
    let mut options = SessionOptions::default();
    (options.chunk, options.threads) = (512, 1);
    options.store = Some(PrefixStore::new(PrefixStoreOptions::default()).expect("a store"));
    let mut session = Session::new(Arc::clone(&model), options).expect("a session");
    let mut tokens = Random(1).tokens(1000, model.spec().vocab);
    session.read_history(&tokens).expect("a history");
    tokens[800] = (tokens[800] + 1) % model.spec().vocab as u32;
    let read = session.read_history(&tokens).expect("a history");
    assert_eq!((read.reused, read.read), (768, 232));
}
