//! A recorded case: tokens, and the logits at some of their positions.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use waterline::ModelSpec;
use waterline_quant::safetensors;

use super::vectors::Vectors;
use crate::error::{Error, Result};

/// A recorded case.
pub(super) struct Case {
    /// The model's input.
    pub tokens: Vec<u32>,
    /// The recorded outputs.
    pub recorded: Vec<Recorded>,
    /// The recorded vectors.
    pub vectors: Vec<Vectors>,
    /// Whether every tensor is decoded to f32 first; otherwise the model runs in the file's formats.
    pub in_f32: bool,
    /// Whether differences are reported without being a failure.
    pub informational: bool,
    /// The reason why the case is informational.
    pub why: String,
    tolerance: f32,
}

/// Recorded logits of consecutive positions.
pub(super) struct Recorded {
    pub name: String,
    /// The first position.
    pub first: usize,
    /// Number of positions.
    pub rows: usize,
    /// The logits that are recorded for each position.
    pub columns: Columns,
    /// `[rows, columns]`.
    pub logits: Vec<f32>,
    /// The most probable token of each position, if these are compared.
    pub best: Vec<Best>,
}

/// Selects the recorded logits of a position.
#[derive(Clone, Copy)]
pub(super) enum Columns {
    /// Logits of the first n tokens.
    First(usize),
    /// The largest n logits, whose differences are at most those of all logits.
    Largest(usize),
}

/// The most probable token of a position, and the lead of its logit over the second best.
#[derive(Clone, Copy)]
pub(super) struct Best {
    pub token: usize,
    pub lead: f32,
}

/// Maximum tolerance of a GGUF case on a GPU, unless the recorded tolerance is larger.
const GGUF_TOLERANCE_ON_GPU: f32 = 0.05;

/// The contents of `meta.json`.
#[derive(Deserialize)]
struct Meta {
    compare: Vec<String>,
    tolerance: f32,
    #[serde(default)]
    informational: bool,
    #[serde(default)]
    why: String,
}

/// The contents of `expect.json`.
#[derive(Deserialize)]
struct Expect {
    prompt: Vec<u32>,
    ids: Vec<u32>,
    logits: Vec<Vec<f32>>,
    top: Vec<Vec<f32>>,
    tolerance: f32,
}

const EXPECT: &str = "expect.json";

/// The path of the model of the case in `dir`: a GGUF file in the folder, or the folder itself.
pub(super) fn model_path(dir: &Path) -> PathBuf {
    if dir.join(EXPECT).is_file() {
        dir.join("model.gguf")
    } else {
        dir.into()
    }
}

/// Lists the cases in the folders of `dir`, by name. Empty if `dir` is a case or a model itself, or has no such folders.
pub(super) fn below(dir: &Path) -> Vec<PathBuf> {
    let is_case = |dir: &Path| dir.join(EXPECT).is_file() || dir.join("meta.json").is_file();
    if is_case(dir) || dir.join("config.json").is_file() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    cases.retain(|folder| is_case(folder));
    cases.sort();
    cases
}

impl Case {
    /// Reads the case in `dir`, for a model of these dimensions.
    pub fn read(dir: &Path, spec: &ModelSpec) -> Result<Self> {
        if dir.join(EXPECT).is_file() {
            Self::read_gguf(&dir.join(EXPECT), spec.vocab)
        } else {
            Self::read_directory(dir, spec)
        }
    }

    /// The largest allowed difference. On a GPU every kernel sums in another order, and chunks of 16-bit weights are multiplied in
    /// 16 bits.
    pub fn tolerance(&self, on_gpu: bool) -> f32 {
        match (on_gpu, self.in_f32) {
            (false, _) => self.tolerance,
            (true, true) => 20.0 * self.tolerance,
            (true, false) => (20.0 * self.tolerance)
                .min(GGUF_TOLERANCE_ON_GPU)
                .max(self.tolerance),
        }
    }

    fn read_directory(dir: &Path, spec: &ModelSpec) -> Result<Self> {
        let meta = dir.join("meta.json");
        if !meta.is_file() {
            let reason = "no recorded case: expected meta.json and case.safetensors with the model, or expect.json with model.gguf";
            return Err(Error::input(dir, reason));
        }
        let meta: Meta = read_json(&meta)?;
        let case = safetensors::Checkpoint::open_file(dir.join("case.safetensors"))?;
        let tokens = read_tokens(&case)?;
        let array = |name: &String| read_array(&case, name, tokens.len(), spec.vocab);
        Ok(Case {
            recorded: meta.compare.iter().map(array).collect::<Result<_>>()?,
            vectors: Vectors::read(&case, tokens.len(), spec.hidden)?,
            tokens,
            in_f32: true,
            informational: meta.informational,
            why: meta.why,
            tolerance: meta.tolerance,
        })
    }

    /// Reads the logits before each of the tokens `ids` that llama.cpp chose after the prompt. The last of these tokens is not fed.
    fn read_gguf(path: &Path, vocab: usize) -> Result<Self> {
        let Expect {
            prompt,
            ids,
            logits,
            top,
            tolerance,
        } = read_json(path)?;
        let rows = ids.len();
        let columns = logits.first().map_or(0, Vec::len);
        let fits = |array: &[Vec<f32>], columns: usize| {
            array.len() == rows && array.iter().all(|row| row.len() == columns)
        };
        let is_whole = !prompt.is_empty()
            && rows > 0
            && (1..=vocab).contains(&columns)
            && fits(&logits, columns)
            && fits(&top, 2)
            && ids.iter().all(|&id| (id as usize) < vocab);
        if !is_whole {
            let reason = format!(
                "expected a prompt, tokens below {vocab}, and one row of logits and one of the two best logits for each token"
            );
            return Err(Error::input(path, reason));
        }
        let first = prompt.len() - 1;
        let best = ids.iter().zip(&top).map(|(&id, top)| Best {
            token: id as usize,
            lead: top[0] - top[1],
        });
        let array = |name: &str, columns, logits: &[Vec<f32>], best| Recorded {
            name: name.into(),
            first,
            rows,
            columns,
            logits: logits.concat(),
            best,
        };
        Ok(Case {
            recorded: vec![
                array("logits", Columns::First(columns), &logits, best.collect()),
                array("top", Columns::Largest(2), &top, Vec::new()),
            ],
            vectors: Vec::new(),
            tokens: prompt.iter().chain(&ids[..rows - 1]).copied().collect(),
            in_f32: false,
            informational: false,
            why: String::new(),
            tolerance,
        })
    }
}

impl Columns {
    /// Selects the recorded logits from all logits of `rows` positions, `[rows, vocab]`.
    pub fn select(self, logits: &[f32], vocab: usize, rows: usize) -> Vec<f32> {
        let rows = logits.chunks_exact(vocab).take(rows);
        match self {
            Columns::First(count) => rows.flat_map(|row| &row[..count]).copied().collect(),
            Columns::Largest(count) => rows.flat_map(|row| largest(row, count)).collect(),
        }
    }
}

fn largest(row: &[f32], count: usize) -> Vec<f32> {
    let mut sorted = row.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.truncate(count);
    sorted
}

impl Best {
    /// Finds the best of all logits of a position; the first of equal logits.
    pub fn new(row: &[f32]) -> Self {
        let mut best = Best {
            token: 0,
            lead: f32::INFINITY,
        };
        for (token, &logit) in row.iter().enumerate().skip(1) {
            let lead = row[best.token] - logit;
            best = if lead < 0.0 {
                Best { token, lead: -lead }
            } else {
                Best {
                    lead: best.lead.min(lead),
                    ..best
                }
            };
        }
        best
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    serde_json::from_slice(&text).map_err(|e| Error::input(path, e.to_string()))
}

fn read_tokens(case: &safetensors::Checkpoint) -> Result<Vec<u32>> {
    let (_, ids) = case.read_i64("input_ids")?;
    let token = |id: &i64| {
        u32::try_from(*id)
            .map_err(|_| Error::input(case.name(), format!("input_ids: {id} is not a token")))
    };
    let tokens = ids.iter().map(token).collect::<Result<Vec<_>>>()?;
    if tokens.is_empty() {
        Err(Error::input(case.name(), "input_ids is empty"))
    } else {
        Ok(tokens)
    }
}

/// Reads the recorded array `name`: `logits` and `prefill_logits` begin at position 0, `decode_logits` end with the input.
fn read_array(
    case: &safetensors::Checkpoint,
    name: &str,
    tokens: usize,
    vocab: usize,
) -> Result<Recorded> {
    let tensor = case.tensor(name)?;
    let rows = match tensor.shape[..] {
        [rows, columns] if columns == vocab && rows <= tokens => rows,
        _ => {
            let reason = format!(
                "{name}: shape {:?}, expected at most [{tokens}, {vocab}]",
                tensor.shape
            );
            return Err(Error::input(case.name(), reason));
        }
    };
    let first = match name {
        "decode_logits" => tokens - rows,
        _ => 0,
    };
    let logits = tensor.to_f32();
    Ok(Recorded {
        name: name.into(),
        first,
        rows,
        columns: Columns::First(vocab),
        best: logits.chunks_exact(vocab).map(Best::new).collect(),
        logits,
    })
}
