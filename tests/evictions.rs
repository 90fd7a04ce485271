//! Learnable token eviction on two backends whose scores differ in their last bits: counts how often they evict different tokens. The
//! second backend is a GPU with `WATERLINE_DEVICE=cuda`, the GPU kernels on the CPU with `WATERLINE_DEVICE=emulator` and the feature
//! `emulator`, and otherwise the CPU reading token by token. WATERLINE_TOKENS is the number of tokens. runtime/docs/DECISIONS.md explains
//! why scores are not rounded before comparison.

use std::path::PathBuf;
use std::sync::Arc;

use waterline::{Device, Model, Session, SessionOptions, Snapshot};

/// The scores of all tokens for one layer and head, and the parameters of its retained set.
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

/// Returns, for each layer with a state tensor called `name`, the number of rows per head and the values of all heads.
fn tensors(snapshot: &Snapshot, name: &str) -> Vec<(usize, Vec<f32>)> {
    let all = snapshot.tensors().filter(|(tensor, _)| tensor.name == name);
    all.map(|(tensor, bytes)| (tensor.shape[1], floats(bytes)))
        .collect()
}

/// Returns the scores of every token that has left the window, by layer and head. All layers must have the same window.
fn scores(
    model: &Arc<Model>,
    tokens: &[u32],
    device: Option<Arc<Device>>,
    chunk: usize,
) -> Vec<Scores> {
    let mut options = SessionOptions::default();
    (options.threads, options.device, options.chunk) = (1, device, chunk);
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    let mut snapshot = session.snapshot().expect("a snapshot");
    let windows = tensors(&snapshot, "window_scores");
    let window = windows[0].0;
    assert!(windows.iter().all(|(rows, _)| *rows == window));
    let mut all: Vec<Vec<f32>> = Vec::new();
    // A token's scores can be read once the next half window has been read.
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

/// Returns the token that a full set evicts to admit `candidate`, possibly the candidate itself.
fn evicted(set: &[usize], candidate: usize, scores: &[f32]) -> usize {
    let lowest = set.iter().copied().reduce(|lowest, other| {
        if scores[other] < scores[lowest] {
            other
        } else {
            lowest
        }
    });
    match lowest {
        Some(lowest) if scores[candidate] > 0.0 && scores[lowest] < scores[candidate] => lowest,
        _ => candidate,
    }
}

/// Runs the decisions with the first scores, and counts how many of them the second scores decide differently. Applying only the first
/// keeps one difference from causing others.
fn differing(a: &Scores, b: &[f32]) -> (usize, usize) {
    let (mut set, mut decisions, mut differ) = (Vec::new(), 0, 0);
    for candidate in a.sink..a.of.len() {
        decisions += 1;
        if set.len() + a.sink < a.capacity {
            differ += usize::from((a.of[candidate] > 0.0) != (b[candidate] > 0.0));
            if a.of[candidate] > 0.0 {
                set.push(candidate);
            }
            continue;
        }
        let leaves = evicted(&set, candidate, &a.of);
        differ += usize::from(leaves != evicted(&set, candidate, b));
        if let Some(row) = set.iter().position(|&token| token == leaves) {
            set[row] = candidate;
        }
    }
    (decisions, differ)
}

/// Returns every small model with learned eviction: the trained one, and fixtures with random weights. WATERLINE_CASES names a folder with
/// more.
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

/// Returns pairs of keys and values among filler, as in the model's training task.
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

/// At most one decision out of this many may differ.
const AGREES: usize = 1_000;

#[test]
fn backends_evict_the_same_tokens() {
    let device = device();
    let chunk = if device.is_some() { 0 } else { 1 };
    let (mut decisions, mut differ, mut count, mut same) = (0, 0, 0, 0);
    let mut largest = 0f32;
    for model in models() {
        let tokens = tokens(number("WATERLINE_TOKENS", 3000), model.spec().vocab);
        let ours = scores(&model, &tokens, None, 0);
        let theirs = scores(&model, &tokens, device.clone(), chunk);
        for (a, b) in ours.iter().zip(&theirs) {
            let (made, otherwise) = differing(a, &b.of);
            (decisions, differ) = (decisions + made, differ + otherwise);
            for (a, b) in a.of.iter().zip(&b.of) {
                count += 1;
                same += usize::from(a.to_bits() == b.to_bits());
                largest = largest.max((a - b).abs());
            }
        }
    }
    println!(
        "{differ} of {decisions} decisions differ; {same} of {count} scores are the same, the others at most {largest:e} apart"
    );
    assert!(decisions > 1_000);
    assert!(differ * AGREES <= decisions, "{differ} of {decisions}");
}
