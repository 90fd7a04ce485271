//! Random changes to valid files and to programs of C calls: 2,000 files of each kind and 500 programs, from a seed, must end in an error
//! or in a model that runs, within 20 seconds and 2 GB of memory. WATERLINE_MUTATIONS and WATERLINE_SEED configure longer campaigns;
//! WATERLINE_CASES and WATERLINE_GGUF name folders with models of more families.

mod counting_allocator;
mod inputs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use counting_allocator::MOST_IN_USE;
use inputs::{KINDS, Kind};

/// The maximum number of bytes in use, for all kinds together.
const MOST_BYTES: usize = 2 << 30;

/// The maximum time of one input.
const MOST_TIME: Duration = Duration::from_secs(20);

/// A repeatable sequence of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

const WORDS: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "2",
    "16777217",
    "4294967296",
    "18446744073709551615",
    "1e308",
    "-0.0",
    "1e-320",
    "\"\"",
    "[]",
    "{}",
    "[[[[]]]]",
    "\"\\u0000\"",
    "\"a\"",
    "[0]",
    "9007199254740993",
    "{{",
    "}}",
    "{%",
    "%}",
    "|",
    "(",
    ")",
    "-",
    "not ",
    "namespace()",
    "range(99999999)",
    "~",
    "**",
    "loop.index",
    "\u{1f525}",
];

const NUMBERS: &[&[u8]] = &[
    &[0],
    &[0xff],
    &[0x7f],
    &[0x80],
    &[0xff; 4],
    &[0xff; 8],
    &[0; 8],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0, 1, 0, 0, 0],
];

/// Returns a random offset in a file, mostly in its first part, which describes the rest.
fn place(random: &mut Random, length: usize) -> usize {
    match random.below(4) {
        0 => random.below(length),
        1 => random.below(length.min(256)),
        _ => random.below(length.min(8192)),
    }
}

fn mutate(random: &mut Random, kind: &Kind, seed: &[u8]) -> Vec<u8> {
    let mut file = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        if file.is_empty() {
            break;
        }
        let at = if kind.is_text {
            random.below(file.len())
        } else {
            place(random, file.len())
        };
        let end = (at + 1 + random.below(24)).min(file.len());
        match (kind.is_text, random.below(8)) {
            (_, 0) => file[at] ^= 1 << random.below(8),
            (_, 1) => drop(file.drain(at..end)),
            (_, 2) => {
                let part = file[at..end].to_vec();
                let to = random.below(file.len());
                file.splice(to..to, part);
            }
            (_, 3) if random.below(4) == 0 => file.truncate(at),
            (true, 3..=5) => {
                // Replaces the word at this offset.
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.".contains(byte);
                let start = file[..at]
                    .iter()
                    .rposition(|b| !is_word(b))
                    .map_or(0, |i| i + 1);
                let length = file[start..].iter().take_while(|b| is_word(b)).count();
                let word = random.one_of(WORDS).bytes();
                file.splice(start..start + length, word);
            }
            (true, _) => {
                let word = random.one_of(WORDS).bytes();
                file.splice(at..at, word);
            }
            (false, _) => {
                let number = random.one_of(NUMBERS);
                let end = (at + number.len()).min(file.len());
                file[at..end].copy_from_slice(&number[..end - at]);
            }
        }
    }
    file
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn campaign(name: &str) {
    let kind = KINDS.iter().find(|kind| kind.name == name).expect("a kind");
    // A program of calls lives as long as a session, and takes as much time as ten files.
    let share = if name == "calls" { 4 } else { 1 };
    let count = number("WATERLINE_MUTATIONS", 2000) / share;
    let seed = number("WATERLINE_SEED", 1);
    let seeds = (kind.seeds)();
    for (i, file) in seeds.iter().enumerate() {
        assert!((kind.use_it)(file), "{name}: seed {i} is not accepted");
    }
    let (mut accepted, mut slowest) = (0, Duration::ZERO);
    for i in 0..count {
        let mut random = Random(seed.wrapping_mul(1 << 32) + i);
        let from = random.below(seeds.len());
        let file = mutate(&mut random, kind, &seeds[from]);
        let keep = || {
            let path = std::env::temp_dir().join(format!("waterline-{name}-{seed}-{i}"));
            std::fs::write(&path, &file).expect("the finding is kept");
            path.display().to_string()
        };
        let attempt = || {
            let clock = Instant::now();
            match catch_unwind(AssertUnwindSafe(|| (kind.use_it)(&file))) {
                Ok(used) => (used, clock.elapsed()),
                Err(_) => panic!("{name}: seed {seed}, mutation {i} panics: {}", keep()),
            }
        };
        let (used, mut time) = attempt();
        accepted += u64::from(used);
        // On a busy machine anything may be slow once.
        for _ in 0..3 {
            if time > MOST_TIME {
                time = attempt().1;
            }
        }
        slowest = slowest.max(time);
        let bytes = MOST_IN_USE.load(Ordering::Relaxed);
        assert!(
            bytes < MOST_BYTES,
            "{name}: seed {seed}, mutation {i} takes {bytes} bytes: {}",
            keep()
        );
        assert!(
            time <= MOST_TIME,
            "{name}: seed {seed}, mutation {i} takes {time:?}: {}",
            keep()
        );
    }
    let bytes = MOST_IN_USE.load(Ordering::Relaxed);
    println!(
        "{name}: seed {seed}, {accepted} of {count} accepted, the slowest took {slowest:?}, at most {bytes} bytes in use"
    );
    assert!(accepted < count, "{name}: everything is accepted");
}

/// Files that once caused a failure, or were built to, in tests/fuzz/kept, with a folder for each kind. They are seeds of the fuzzers too.
#[test]
fn kept_files_are_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/kept");
    let mut count = 0;
    for kind in KINDS {
        let entries = std::fs::read_dir(folder.join(kind.name));
        for entry in entries.into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let file = std::fs::read(&path).expect("a file");
            assert!(!(kind.use_it)(&file), "{} is accepted", path.display());
            count += 1;
        }
    }
    assert!(count > 10, "{count} files");
}

#[test]
fn gguf_files() {
    campaign("gguf");
}

#[test]
fn safetensors_files() {
    campaign("safetensors");
}

#[test]
fn answers() {
    campaign("answer");
}

#[test]
fn histories() {
    campaign("history");
}

#[test]
fn configurations() {
    campaign("config");
}

#[test]
fn tokenizers() {
    campaign("tokenizer");
}

#[test]
fn templates() {
    campaign("template");
}

#[test]
fn saved_sessions() {
    campaign("snapshot");
}

#[test]
fn checkpoints_of_prefix_stores() {
    campaign("prefix");
}

#[test]
fn state_files() {
    campaign("state");
}

#[test]
fn modules_of_embedding_models() {
    campaign("modules");
}

#[test]
fn split_files() {
    campaign("split");
}

#[test]
fn packed_numbers() {
    campaign("packed");
}

#[test]
fn importance_matrices() {
    campaign("imatrix");
}

#[test]
fn number_formats() {
    campaign("formats");
}

#[test]
fn calls_from_c() {
    campaign("calls");
}
