//! Exact sessions: the bits of a token depend only on the tokens before it. Random schedules of chunks, splits, forks, restores, rewinds,
//! batches, drafts and threads give the logits and the state of a session that reads token by token.
//!
//! WATERLINE_SCHEDULES is the number of schedules per model, WATERLINE_SEED the first seed, WATERLINE_TOKENS the number of tokens that a
//! schedule reads (80), and WATERLINE_ONLY a part of the names of the models to test. `--nocapture` shows how many tokens were read in each
//! way. `WATERLINE_DEVICE=cuda` runs the sessions on a GPU, `emulator` (a feature) runs the GPU kernels on the CPU.

mod synthetic;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use waterline::{
    Batch, Device, GenerateOptions, Model, PrefixStore, PrefixStoreOptions, Session,
    SessionOptions, Snapshot,
};
use waterline_quant::FORMATS;

use synthetic::in_format;

/// The number of tokens that a session remembers.
const HISTORY: usize = 160;
/// The maximum length of a prompt before a generation with drafts.
const PROMPT: usize = 80;
/// The ways of reading tokens; the calls of a schedule use the first six.
const WAYS: [&str; 9] = [
    "after a fork",
    "after a saved state",
    "again after a rewind",
    "in a batch",
    "with the logits of each",
    "after a checkpoint of a store",
    "in calls and chunks",
    "by two threads",
    "after drafts",
];

/// The number of tokens compared, by [`WAYS`].
#[derive(Default)]
struct Counts([usize; WAYS.len()]);

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let ways = self.0.iter().zip(WAYS).filter(|(count, _)| **count > 0);
        let ways: Vec<String> = ways.map(|(count, way)| format!("{count} {way}")).collect();
        f.write_str(&ways.join(", "))
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn below(random: &mut fastrand::Rng, n: usize) -> usize {
    random.usize(..n)
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// Returns every fixture and every small model of the repository.
fn models() -> Vec<(String, Arc<Model>)> {
    let entries = ["fixtures", "models"].map(|name| std::fs::read_dir(folder().join(name)));
    let paths = entries
        .into_iter()
        .flat_map(|entries| entries.expect("a folder"));
    let mut paths: Vec<PathBuf> = paths.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| {
        path.join("meta.json").exists() || path.extension() == Some("gguf".as_ref())
    });
    paths.push(folder().join("../tools/model/waterline-chat.gguf"));
    paths.sort();
    assert!(paths.len() > 20, "{} models", paths.len());
    let open = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), Model::open(path).expect("a model"))
    };
    paths.iter().map(open).collect()
}

fn device() -> Option<Arc<Device>> {
    match std::env::var("WATERLINE_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::open(0).expect("a GPU")),
        #[cfg(feature = "emulator")]
        Ok("emulator") => Some(Device::emulated()),
        _ => None,
    }
}

/// A model on a device.
struct Place {
    name: String,
    model: Arc<Model>,
    device: Option<Arc<Device>>,
    /// The number of tokens that a schedule reads.
    length: usize,
}

impl Place {
    fn options(&self, chunk: usize, threads: usize) -> SessionOptions {
        let mut options = SessionOptions::default();
        options.exact = true;
        (options.chunk, options.threads, options.marks) = (chunk, threads, 2);
        (options.state.context, options.state.history) = (2 * self.length.max(PROMPT), HISTORY);
        options.sampler.temperature = 0.0;
        options.sampler.seed = 7;
        options.device = self.device.clone();
        options
    }

    fn session(&self, chunk: usize, threads: usize) -> Session {
        Session::new(Arc::clone(&self.model), self.options(chunk, threads)).expect("a session")
    }

    fn tokens(&self) -> Vec<u32> {
        let vocab = self.model.spec().vocab;
        // Tokens repeat, so that drafts are found.
        let token = |i: usize| ((i % 23) * (i % 23) * 37 + i / 40) % vocab;
        (0..self.length.max(PROMPT))
            .map(|i| token(i) as u32)
            .collect()
    }
}

fn logits(session: &Session) -> Vec<u32> {
    let logits = session.logits().expect("logits").iter();
    logits.map(|logit| logit.to_bits()).collect()
}

/// Returns a hash of the logits' bits.
fn digest(logits: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    logits
        .iter()
        .for_each(|logit| logit.to_bits().hash(&mut hasher));
    hasher.finish()
}

fn digest_of(session: &Session) -> u64 {
    digest(session.logits().expect("logits"))
}

fn state(session: &Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    let snapshot = session.snapshot().expect("a snapshot");
    snapshot.write(&mut bytes).expect("memory");
    bytes
}

/// The results of a session that reads tokens one by one.
struct Lone {
    digests: Vec<u64>,
    state: Vec<u8>,
}

impl Lone {
    fn new(place: &Place) -> Self {
        let mut session = place.session(1, 1);
        let mut read = |&token: &u32| {
            session.feed(&[token]).expect("a token");
            digest_of(&session)
        };
        Lone {
            digests: place.tokens()[..place.length]
                .iter()
                .map(&mut read)
                .collect(),
            state: state(&session),
        }
    }
}

/// Reads all tokens with random calls and compares the bits after each token.
fn schedule(place: &Place, lone: &Lone, seed: u64, counts: &mut Counts) {
    let mut random = fastrand::Rng::with_seed(seed);
    let tokens = place.tokens();
    let mut options = PrefixStoreOptions::default();
    options.bytes = 64 << 20;
    let store = PrefixStore::new(options).expect("a store");
    let open = |random: &mut fastrand::Rng| {
        let chunk = [1, 3, 8, 33, 0][below(random, 5)];
        let mut options = place.options(chunk, 1 + below(random, 2));
        options.store = Some(Arc::clone(&store));
        Session::new(Arc::clone(&place.model), options).expect("a session")
    };
    let mut session = open(&mut random);
    // Longer schedules have longer calls.
    let longest = (place.length / 500).max(40);
    while (session.position() as usize) < place.length {
        let at = session.position() as usize;
        let count = 1 + below(&mut random, (place.length - at).min(longest));
        let next = &tokens[at..at + count];
        let call = below(&mut random, 8);
        let mut before = 0;
        match call {
            0 => {
                let mut other = session.fork().expect("a fork");
                session.feed(&tokens[..3]).expect("tokens of its own");
                other.feed(next).expect("tokens");
                session = other;
            }
            1 => {
                let bytes = state(&session);
                let saved = Snapshot::read(&mut &bytes[..], bytes.len() as u64, "saved");
                session = open(&mut random);
                session.restore(&saved.expect("a state")).expect("restored");
                session.feed(next).expect("tokens");
            }
            2 => {
                session.mark().expect("a mark");
                session.feed(next).expect("tokens");
                session.rewind(at as u64).expect("rewound");
                session.feed(next).expect("tokens again");
            }
            3 => {
                let mut others: Vec<Session> = (0..below(&mut random, 6))
                    .map(|_| open(&mut random))
                    .collect();
                let mut batch = Batch::new(&session, 1 + others.len()).expect("a batch");
                for &token in next {
                    let mut members = vec![&mut session];
                    members.extend(others.iter_mut());
                    let mut fed = vec![5; members.len()];
                    fed[0] = token;
                    batch.feed(&mut members, &fed).expect("a step of a batch");
                }
            }
            4 => {
                let mut each = Vec::new();
                let shown = |_: usize, logits: &[f32]| each.push(digest(logits));
                session.feed_each(next, shown).expect("tokens");
                assert!(each == lone.digests[at..at + count], "{}: each", place.name);
            }
            5 => {
                session.checkpoint().expect("room");
                session = open(&mut random);
                let read = session.read_history(&tokens[..at + count]);
                before = read.expect("a history").read.saturating_sub(count);
            }
            _ => session.feed(next).expect("tokens"),
        }
        counts.0[call.min(6)] += before + count;
        if session.options().threads == 2 {
            counts.0[7] += before + count;
        }
        let position = session.position() as usize;
        assert_eq!(position, at + count);
        assert!(
            digest_of(&session) == lone.digests[position - 1],
            "{}: seed {seed}, call {call}, tokens {at}..{position}",
            place.name
        );
    }
    assert!(state(&session) == lone.state, "{}: seed {seed}", place.name);
}

/// Checks that a generation with drafts, in a session that reads its prompt in random chunks, equals the generation without drafts.
fn drafts(place: &Place, seed: u64, counts: &mut Counts) {
    let mut random = fastrand::Rng::with_seed(seed);
    let prompt = &place.tokens()[..1 + below(&mut random, PROMPT)];
    let count = 1 + below(&mut random, (place.length / 2).max(40));
    let generate = |lookup: usize, chunk: usize| {
        let mut options = place.options(chunk, 1);
        options.lookup = lookup;
        let mut session = Session::new(Arc::clone(&place.model), options).expect("a session");
        session.feed(prompt).expect("a prompt");
        let mut options = GenerateOptions::default();
        (options.max_tokens, options.stop_at_eos) = (count, false);
        let pieces = session.generate(options).expect("a generation");
        let tokens: Vec<_> = pieces.map(|piece| piece.expect("a piece").token).collect();
        (tokens, session.position(), logits(&session))
    };
    let [lookup, chunk] = [1 + below(&mut random, 8), 1 + below(&mut random, 40)];
    assert!(
        generate(0, 1) == generate(lookup, chunk),
        "{}: seed {seed}, drafts of {lookup} tokens, chunks of {chunk}",
        place.name
    );
    counts.0[8] += count;
}

/// Runs the schedules of a model; returns their number.
fn check(name: String, model: Arc<Model>) -> u64 {
    let only = std::env::var("WATERLINE_ONLY").unwrap_or_default();
    if !name.contains(&only) {
        return 0;
    }
    let place = Place {
        name,
        model,
        device: device(),
        length: number("WATERLINE_TOKENS", 80) as usize,
    };
    let lone = Lone::new(&place);
    let first = number("WATERLINE_SEED", 1);
    let seeds = first..first + number("WATERLINE_SCHEDULES", 3);
    let mut counts = Counts::default();
    for seed in seeds.clone() {
        schedule(&place, &lone, seed, &mut counts);
        if place.model.has_tokenizer() {
            drafts(&place, seed, &mut counts);
        }
    }
    let name = &place.name;
    println!("{name}: seeds {seeds:?}, no bit differs; tokens: {counts}");
    seeds.end - seeds.start
}

#[test]
fn every_model_has_the_bits_of_steps_however_it_reads() {
    let schedules: u64 = models()
        .into_iter()
        .map(|(name, model)| check(name, model))
        .sum();
    println!("{schedules} schedules of models");
}

#[test]
fn every_format_has_the_bits_of_steps_however_it_reads() {
    let (mut tested, mut schedules) = (0, 0);
    for format in FORMATS {
        for file in ["gdn-swa.gguf", "mamba2.gguf", "lalte.gguf"] {
            if let Some(model) = in_format(&format!("models/{file}"), format) {
                schedules += check(format!("{file} in {format}"), model);
                tested += 1;
            }
        }
    }
    println!("{schedules} schedules of {tested} models by format");
    assert!(tested > 10, "{tested} models");
}

/// Tests the built-in model in every format that its rows allow.
#[test]
#[ignore = "takes a minute"]
fn drafts_in_every_format_are_steps() {
    for format in FORMATS {
        if let Some(model) = in_format("../tools/model/waterline-chat.gguf", format) {
            check(format!("built-in in {format}"), model);
        }
    }
}

/// The last chunk has one token, which a step reads, on a different queue than the slots of a chunk.
#[cfg(feature = "emulator")]
#[test]
fn a_chunk_of_one_token_waits_for_the_one_before() {
    let model = Model::open(folder().join("models/gdn-swa.gguf")).expect("a model");
    let read = |chunk: usize| {
        let mut options = SessionOptions::default();
        (options.exact, options.chunk) = (true, chunk);
        (options.sampler.seed, options.device) = (7, Some(Device::emulated()));
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        session.feed(&[5, 9, 2, 77, 31]).expect("tokens");
        (logits(&session), state(&session))
    };
    assert!(read(1) == read(4));
}

#[test]
fn without_the_option_a_quantized_prompt_depends_on_its_chunks() {
    // Otherwise the tests above would prove nothing.
    let model = Model::open(folder().join("../tools/model/waterline-chat.gguf")).expect("a model");
    let read = |exact: bool, chunk: usize| {
        let mut options = SessionOptions::default();
        (options.exact, options.chunk, options.threads) = (exact, chunk, 2);
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        let tokens: Vec<u32> = (0..100).map(|i| (i * 37 + 5) % 4096).collect();
        session.feed(&tokens).expect("a prompt");
        logits(&session)
    };
    assert!(read(true, 1) == read(true, 64));
    assert!(read(false, 1) != read(false, 64));
    assert!(read(true, 1) == read(false, 1), "steps are steps");
}

/// Prints the distance between the logits of a prompt read in one chunk and in steps, for docs/exact.md.
#[test]
#[ignore = "prints a table"]
fn differences_without_the_option() {
    println!(
        "| matrices | standard deviation of the logits | largest difference without | with |\n|---|---|---|---|"
    );
    for format in FORMATS {
        let Some(model) = in_format("../tools/model/waterline-chat.gguf", format) else {
            continue;
        };
        let read = |exact: bool, chunk: usize| {
            let mut options = SessionOptions::default();
            (options.exact, options.chunk, options.threads) = (exact, chunk, 2);
            let mut session = Session::new(Arc::clone(&model), options).expect("a session");
            let tokens: Vec<u32> = (0..150).map(|i| (i * 37 + 5) % 4096).collect();
            session.feed(&tokens).expect("a prompt");
            session.logits().expect("logits").to_vec()
        };
        let steps = read(false, 1);
        let count = steps.len() as f32;
        let mean = steps.iter().sum::<f32>() / count;
        let variance = steps.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
        let difference = |other: Vec<f32>| {
            let pairs = steps.iter().zip(other);
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let [without, with] = [difference(read(false, 256)), difference(read(true, 256))];
        println!(
            "| {format} | {:.2} | {without:.5} | {with} |",
            variance.sqrt()
        );
        assert_eq!(with, 0.0, "{format}");
    }
}
