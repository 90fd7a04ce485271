//! Learnable token eviction on two backends, whose scores differ in their last bits: how often they evict different tokens, and whether a
//! rounding of the scores before they are compared makes them agree. `WATERLINE_DEVICE=cuda` compares the CPU with a GPU, `emulator`
//! (a feature) with its kernels on the CPU; without either, scores are changed by a few units in the last place. WATERLINE_TOKENS
//! is how many tokens are read. Run with `--nocapture` for the table.

use std::path::PathBuf;
use std::sync::Arc;

use waterline::{Device, Model, Session, SessionOptions, Snapshot};

/// The scores of one layer's and head's tokens, and what its set holds.
struct Scores {
    of: Vec<f32>,
    capacity: usize,
    sink: usize,
}

fn number(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn device() -> Option<Arc<Device>> {
    match std::env::var("WATERLINE_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::open(0).expect("a GPU")),
        #[cfg(feature = "emulator")]
        Ok("emulator") => Some(Device::emulated()),
        _ => None,
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// The state tensors called `name`: of each layer that has it, the rows of one head and the values of all.
fn tensors(snapshot: &Snapshot, name: &str) -> Vec<(usize, Vec<f32>)> {
    let all = snapshot.tensors().filter(|(tensor, _)| tensor.name == name);
    all.map(|(tensor, bytes)| (tensor.shape[1], floats(bytes)))
        .collect()
}

/// The scores of every token that has left the window, by layer and head. Windows are as long in all layers.
fn scores(model: &Arc<Model>, tokens: &[u32], device: Option<Arc<Device>>) -> Vec<Scores> {
    let mut options = SessionOptions::default();
    (options.threads, options.device) = (1, device);
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    let mut snapshot = session.snapshot().expect("a snapshot");
    let windows = tensors(&snapshot, "window_scores");
    let window = windows[0].0;
    assert!(windows.iter().all(|(rows, _)| *rows == window));
    let mut all: Vec<Vec<f32>> = Vec::new();
    // A window's scores are there when the next half of a window has been read.
    for (first, part) in (0..).step_by(window / 2).zip(tokens.chunks(window / 2)) {
        session.feed(part).expect("tokens");
        session
            .snapshot_into(&mut snapshot)
            .expect("the same layout");
        let windows = tensors(&snapshot, "window_scores");
        let heads = windows
            .iter()
            .flat_map(|(rows, values)| values.chunks_exact(*rows));
        for (head, rows) in heads.enumerate() {
            if all.len() <= head {
                all.push(Vec::new());
            }
            let known = first.max(window / 2) - window / 2..first;
            all[head].extend(known.map(|position: usize| rows[position % window]));
        }
    }
    let sets = tensors(&snapshot, "set_scores");
    let heads = sets
        .iter()
        .flat_map(|(rows, values)| values.chunks_exact(*rows));
    all.into_iter()
        .zip(heads)
        .map(|(of, set)| Scores {
            of,
            capacity: set.len(),
            sink: set.iter().filter(|score| score.is_infinite()).count(),
        })
        .collect()
}

/// A rounding before scores are compared.
type Rounding = fn(f32) -> f32;

/// To so many bits of the mantissa.
fn bits<const N: u32>(score: f32) -> f32 {
    let below = 23 - N;
    let half = 1u32 << (below - 1);
    f32::from_bits((score.to_bits() + half) & !((1 << below) - 1))
}

/// To a multiple of 2^-N.
fn grid<const N: i32>(score: f32) -> f32 {
    let step = 2f32.powi(N);
    (score * step).round_ties_even() / step
}

const ROUNDINGS: [(&str, Rounding); 9] = [
    ("none", |score| score),
    ("20 bits", bits::<20>),
    ("16 bits", bits::<16>),
    ("13 bits", bits::<13>),
    ("10 bits", bits::<10>),
    ("1/1048576", grid::<20>),
    ("1/65536", grid::<16>),
    ("1/4096", grid::<12>),
    ("1/256", grid::<8>),
];

/// Which token a full set gives up for the `candidate`, itself included.
fn evicted(set: &[usize], candidate: usize, score: impl Fn(usize) -> f32) -> usize {
    let lowest = set.iter().copied().reduce(|lowest, other| {
        if score(other) < score(lowest) {
            other
        } else {
            lowest
        }
    });
    match lowest {
        Some(lowest) if score(candidate) > 0.0 && score(lowest) < score(candidate) => lowest,
        _ => candidate,
    }
}

/// Decisions on the sets of the first scores, and how many of them the second scores make otherwise, rounded in their own way.
fn differing(a: &Scores, b: &[f32], [rounding, other]: [Rounding; 2]) -> (usize, usize) {
    let (mut set, mut decisions, mut differ) = (Vec::new(), 0, 0);
    for candidate in a.sink..a.of.len() {
        let ours = |token: usize| rounding(a.of[token]);
        let theirs = |token: usize| other(b[token]);
        if set.len() + a.sink < a.capacity {
            decisions += 1;
            differ += usize::from((ours(candidate) > 0.0) != (theirs(candidate) > 0.0));
            if ours(candidate) > 0.0 {
                set.push(candidate);
            }
            continue;
        }
        decisions += 1;
        let leaves = evicted(&set, candidate, ours);
        differ += usize::from(leaves != evicted(&set, candidate, theirs));
        if let Some(row) = set.iter().position(|&token| token == leaves) {
            set[row] = candidate;
        }
    }
    (decisions, differ)
}

/// Every small model with learned eviction: the trained one, and cases with random weights. WATERLINE_CASES names a folder with more.
fn models() -> Vec<Arc<Model>> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let mut folders = vec![tests.join("fixtures"), tests.join("models")];
    folders.extend(std::env::var_os("WATERLINE_CASES").map(PathBuf::from));
    let read = |folder: &PathBuf| std::fs::read_dir(folder).expect("a folder");
    let entries = folders.iter().flat_map(read);
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths.retain(|path| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("lalte")
    });
    paths
        .iter()
        .map(|path| Model::open(path).expect("a model"))
        .collect()
}

/// Pairs of keys and values among filler, as the trained model knows them.
fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    let mut seed = 1u64;
    let mut random = move |range: std::ops::Range<usize>| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        range.start + (seed >> 33) as usize % range.len()
    };
    let mut tokens = vec![1];
    while tokens.len() < count {
        match random(0..3) {
            0 => tokens.push(random(224..256)),
            _ => tokens.extend([random(32..160), random(160..224)]),
        }
    }
    tokens.iter().map(|token| (token % vocab) as u32).collect()
}

#[test]
fn equal_scores_evict_alike_and_what_differs_is_counted() {
    let device = device();
    let mut changes = 1u64;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for model in models() {
        let tokens = tokens(number("WATERLINE_TOKENS", 3000), model.spec().vocab);
        let all = scores(&model, &tokens, None);
        match &device {
            Some(device) => {
                let other = scores(&model, &tokens, Some(Arc::clone(device)));
                theirs.extend(other.into_iter().map(|head| head.of));
            }
            None => {
                // Up to two units in the last place.
                let mut change = |score: &f32| {
                    changes = changes
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    f32::from_bits((score.to_bits() + (changes >> 33) as u32 % 5).saturating_sub(2))
                };
                theirs.extend(
                    all.iter()
                        .map(|head| head.of.iter().map(&mut change).collect::<Vec<f32>>()),
                );
            }
        }
        ours.extend(all);
    }
    let pairs = || {
        ours.iter()
            .zip(&theirs)
            .flat_map(|(a, b)| a.of.iter().zip(b))
    };
    let largest = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let same = pairs().filter(|(a, b)| a.to_bits() == b.to_bits()).count();
    println!(
        "{} heads, {} scores, {same} the same in all bits, the others at most {largest:e} apart",
        ours.len(),
        pairs().count()
    );
    assert!(
        same < pairs().count(),
        "nothing differs, so nothing is shown"
    );
    for (name, rounding) in ROUNDINGS {
        let (mut decisions, mut differ, mut moved) = (0, 0, 0);
        for (a, b) in ours.iter().zip(&theirs) {
            let (made, otherwise) = differing(a, b, [rounding; 2]);
            (decisions, differ) = (decisions + made, differ + otherwise);
            moved += differing(a, &a.of, [|score| score, rounding]).1;
            let unchanged = differing(a, &a.of, [rounding; 2]).1;
            assert_eq!(unchanged, 0, "equal scores decide the same");
        }
        let mut distinct: Vec<u32> = pairs().map(|(a, _)| rounding(*a).to_bits()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        println!(
            "rounding {name}: {differ} of {decisions} decisions differ between the two, {moved} from those without rounding; {} different scores",
            distinct.len()
        );
    }
}
