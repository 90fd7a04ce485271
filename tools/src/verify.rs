//! `waterline verify DIR`: compares a model with recorded logits, read in four ways.

mod case;
mod vectors;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use waterline::StateDtype;
use waterline::internal::Checkpoint;
use waterline::{Device, Kv, Model, Session, SessionOptions, Snapshot, StepProgram};
use waterline_quant::{F16, F32, Tensor};

use crate::builtin::OpenArgs;
use crate::device::DeviceArgs;
use crate::error::{Error, Result};
use crate::text::json_line;
use crate::units;
use case::{Best, Case};

/// Compare a model with recorded logits.
///
/// DIR holds a checkpoint (config.json, model.safetensors), case.safetensors with input_ids and recorded logits, and meta.json,
/// which names the arrays to compare and the tolerance; this model runs in f32. Or DIR holds model.gguf and expect.json, with a
/// prompt, the tokens that llama.cpp chose after it, and the first and the best of its logits before each of these tokens; this
/// model runs in the file's formats. The model reads the input in four ways: as one chunk, in ragged chunks, token by token, and
/// with a save and restore in the middle. On a GPU it also reads token by token as a recorded graph of kernels instead of one
/// kernel. The tolerance is twenty times as large on a GPU, but at most 0.05 for a GGUF file unless more is recorded. The most
/// probable tokens must match too, unless the two best recorded logits are closer to each other than the tolerance. The final
/// states are compared with each other, and recorded final hidden states (`final`) and pooled vectors (`embed_last`, `embed_mean`,
/// `embed_cls`) with those read without logits; if a state tensor's largest value exceeds one, its differences are divided by that value.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a case, or a folder of cases, for which a line each is printed.
    dir: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Seed of the ragged chunks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads; 0 uses one per physical core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

/// The largest absolute difference (for states, see [`compare_states`]) and the relative L2 difference.
#[derive(Clone, Copy, Default)]
struct Difference {
    absolute: f32,
    relative: f64,
}

/// Comparison of the most probable tokens with the recorded tokens.
#[derive(Clone, Copy, Default)]
struct TopOne {
    /// Number of positions.
    rows: usize,
    /// Positions with equal tokens.
    equal: usize,
    /// Positions with different tokens where the two best recorded logits are not close.
    different: usize,
}

/// The result of one way of reading: the logits of every position and the final state.
struct Reading {
    logits: Vec<f32>,
    /// The final hidden states `[tokens, hidden]`, read without logits; empty if they are not compared.
    hidden: Vec<f32>,
    state: Snapshot,
}

/// Runs the command. It succeeds only if every difference is within the tolerance.
pub fn run(args: &Args) -> Result<ExitCode> {
    let device = args.device.open()?;
    let cases = case::below(&args.dir);
    if cases.is_empty() {
        let verified = verify(&args.dir, device, args)?;
        let status = verified.status();
        print(&if args.json {
            json_line(&verified.result)
        } else {
            verified.table
        })?;
        return Ok(status);
    }
    let mut failed = 0;
    for case in &cases {
        let line = match verify(case, device.clone(), args) {
            Ok(verified) => {
                failed += usize::from(verified.status() != ExitCode::SUCCESS);
                if args.json {
                    json_line(&verified.result)
                } else {
                    verified.line()
                }
            }
            Err(error) => {
                failed += 1;
                if args.json {
                    json_line(&json!({ "case": case, "error": error.sentence() }))
                } else {
                    format!("{error}\n")
                }
            }
        };
        print(&line)?;
    }
    if !args.json {
        let sound = cases.len() - failed;
        print(&format!("{sound} of {} cases as expected\n", cases.len()))?;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    match written.map_err(Error::Stdout) {
        // A reader that closed the pipe still learns of a difference from the exit status.
        Err(error) if !error.is_closed_pipe() => Err(error),
        _ => Ok(()),
    }
}

/// The outcome of a case.
struct Verified {
    /// The line of `--json`.
    result: serde_json::Value,
    /// The table of all comparisons.
    table: String,
}

impl Verified {
    /// Success if every difference is within the tolerance or the case is informational.
    fn status(&self) -> ExitCode {
        let is = |key: &str| self.result[key] == true;
        ExitCode::from(u8::from(!is("within") && !is("informational")))
    }

    /// The line for this case among several cases.
    fn line(&self) -> String {
        let number = |key: &str| units::difference(self.result[key].as_f64().unwrap_or(f64::NAN));
        let verdict = match (&self.result["within"], &self.result["informational"]) {
            (serde_json::Value::Bool(true), _) => "within",
            (_, serde_json::Value::Bool(true)) => "not within (expected)",
            _ => "NOT within",
        };
        let tokens = match self.result["top1_different"].as_u64() {
            Some(0) | None => String::new(),
            Some(n) => format!(", {n} differing most probable tokens"),
        };
        format!(
            "{:<32} {verdict} {}: at most {}{tokens}\n",
            self.result["case"].as_str().unwrap_or_default(),
            number("tolerance"),
            number("worst"),
        )
    }
}

/// Verifies the case in `dir`.
fn verify(dir: &Path, device: Option<Arc<Device>>, args: &Args) -> Result<Verified> {
    let checkpoint = args.open.checkpoint(Some(&case::model_path(dir)))?;
    let case = Case::read(dir, &checkpoint.spec)?;
    let model = Model::bind(if case.in_f32 {
        in_f32(checkpoint)?
    } else {
        checkpoint
    })?;
    let tolerance = case.tolerance(device.is_some());
    let readings = read_four_ways(&model, &case, device, args)?;
    let mut worst_of_all = 0.0f32;
    let mut different = 0;
    let mut ways = serde_json::Map::new();
    for (way, reading) in &readings {
        let mut arrays = serde_json::Map::new();
        for record in &case.recorded {
            let vocab = model.spec().vocab;
            let ours = &reading.logits[record.first * vocab..];
            let difference = compare(
                &record.columns.select(ours, vocab, record.rows),
                &record.logits,
            );
            worst_of_all = worst_of_all.max(difference.absolute);
            let mut compared = difference.to_json();
            if !record.best.is_empty() {
                let top = top_one(ours, vocab, &record.best, tolerance);
                different += top.different;
                compared["top1"] = top.to_json();
            }
            arrays.insert(record.name.clone(), compared);
        }
        for record in case.vectors.iter().filter(|_| !reading.hidden.is_empty()) {
            let ours = record.compute(&model, &reading.hidden)?;
            let difference = compare(&ours, &record.values);
            worst_of_all = worst_of_all.max(difference.absolute);
            arrays.insert(record.name.into(), difference.to_json());
        }
        let difference = compare_states(&readings[0].1.state, &reading.state);
        worst_of_all = worst_of_all.max(difference.absolute);
        arrays.insert("state".into(), difference.to_json());
        ways.insert((*way).into(), arrays.into());
    }
    let within = worst_of_all <= tolerance && different == 0;
    let result = json!({
        "case": dir.file_name().map(|name| name.to_string_lossy()),
        "device": args.device.name(),
        "tolerance": tolerance,
        "worst": worst_of_all,
        "top1_different": different,
        "within": within,
        "informational": case.informational,
        "ways": ways,
    });
    Ok(Verified {
        table: table(dir, &case, &result, within),
        result,
    })
}

impl Difference {
    fn to_json(self) -> serde_json::Value {
        json!({ "max_abs": self.absolute, "relative_l2": self.relative })
    }
}

impl TopOne {
    fn to_json(self) -> serde_json::Value {
        json!({ "rows": self.rows, "equal": self.equal, "different": self.different })
    }
}

fn table(dir: &Path, case: &Case, result: &serde_json::Value, within: bool) -> String {
    let mut lines = vec![
        dir.display().to_string(),
        format!(
            "{:<10} {:<16} {:>12} {:>12}  {}",
            "way", "compared", "max abs", "relative L2", "most probable token"
        ),
    ];
    for (way, arrays) in result["ways"].as_object().into_iter().flatten() {
        for (array, difference) in arrays.as_object().into_iter().flatten() {
            let number = |key: &str| difference[key].as_f64().unwrap_or(f64::NAN);
            let top = &difference["top1"];
            let top = match (top["rows"].as_u64(), top["equal"].as_u64()) {
                (Some(rows), Some(equal)) if rows == equal => format!("  equal in {rows}"),
                (Some(rows), Some(equal)) => format!(
                    "  equal in {equal} of {rows}, of the others {} with recorded logits that lie apart",
                    top["different"]
                ),
                _ => String::new(),
            };
            lines.push(format!(
                "{way:<10} {array:<16} {:>12} {:>12}{top}",
                units::difference(number("max_abs")),
                units::difference(number("relative_l2"))
            ));
        }
    }
    let verdict = match (within, case.informational) {
        (true, _) => "within the tolerance".to_string(),
        (false, false) => "NOT within the tolerance".into(),
        (false, true) => format!(
            "not within the tolerance, which is expected of this case: {}",
            case.why
        ),
    };
    let tolerance = result["tolerance"].as_f64().unwrap_or(f64::NAN);
    lines.push(format!("{verdict} {}\n", units::difference(tolerance)));
    lines.join("\n")
}

/// Converts every tensor to f32.
fn in_f32(mut checkpoint: Checkpoint) -> Result<Checkpoint> {
    for tensor in checkpoint.tensors.values_mut() {
        if tensor.format.ggml_type != F32.ggml_type {
            let values: Vec<u8> = tensor
                .to_f32()
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect();
            *tensor = Tensor::new(
                &F32,
                tensor.shape.clone(),
                waterline_quant::Bytes::from_vec(values),
            )?;
        }
    }
    Ok(checkpoint)
}

fn read_four_ways(
    model: &Arc<Model>,
    case: &Case,
    device: Option<Arc<Device>>,
    args: &Args,
) -> Result<Vec<(&'static str, Reading)>> {
    let tokens = &case.tokens[..];
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (tokens.len(), tokens.len());
    options.state.kv = Kv::F32;
    (options.chunk, options.threads) = (tokens.len(), args.threads);
    (options.device, options.step) = (device, StepProgram::Persistent);
    let (mut session, options) = match Session::new(Arc::clone(model), options.clone()) {
        Err(error @ waterline::Error::Device { .. }) if options.device.is_some() => {
            eprintln!("{error}");
            let mut recorded = options;
            recorded.step = StepProgram::Recorded;
            (Session::new(Arc::clone(model), recorded.clone())?, recorded)
        }
        session => (session?, options),
    };
    if let Some(form) = session.step_form() {
        eprintln!("a step on the GPU is {form}");
    }
    let whole = [tokens.len()];
    let ragged = ragged(tokens.len(), args.seed);
    let single = vec![1; tokens.len()];
    let mut readings = Vec::new();
    for (way, pieces) in [
        ("chunk", &whole[..]),
        ("ragged", &ragged),
        ("steps", &single),
    ] {
        session.reset()?;
        let mut logits = Vec::new();
        read_pieces(&mut session, tokens, pieces, &mut logits)?;
        let state = session.snapshot()?;
        let mut hidden = Vec::new();
        if !case.vectors.is_empty() {
            session.reset()?;
            read_hidden(&mut session, tokens, pieces, &mut hidden)?;
        }
        readings.push((
            way,
            Reading {
                logits,
                hidden,
                state,
            },
        ));
    }

    if options.device.is_some() {
        let mut options = options;
        options.step = StepProgram::Recorded;
        let mut twin = Session::new(Arc::clone(model), options)?;
        let mut logits = Vec::new();
        read_pieces(&mut twin, tokens, &single, &mut logits)?;
        let state = twin.snapshot()?;
        let hidden = Vec::new();
        readings.push((
            "recorded",
            Reading {
                logits,
                hidden,
                state,
            },
        ));
    }

    session.reset()?;
    let (head, tail) = tokens.split_at(tokens.len() / 2);
    let mut logits = Vec::new();
    read_pieces(&mut session, head, &[head.len()], &mut logits)?;
    let mut file = Vec::new();
    session
        .snapshot()?
        .write(&mut file)
        .map_err(|e| Error::io("snapshot", e))?;
    let mut restored = Session::new(Arc::clone(model), session.options().clone())?;
    restored.restore(&Snapshot::read(
        &mut &file[..],
        file.len() as u64,
        "memory",
    )?)?;
    read_pieces(&mut restored, tail, &[tail.len()], &mut logits)?;
    readings.push((
        "restore",
        Reading {
            logits,
            hidden: Vec::new(),
            state: restored.snapshot()?,
        },
    ));
    Ok(readings)
}

fn read_pieces(
    session: &mut Session,
    tokens: &[u32],
    pieces: &[usize],
    logits: &mut Vec<f32>,
) -> Result<()> {
    let mut rest = tokens;
    for &piece in pieces {
        let (now, later) = rest.split_at(piece);
        session.feed_each(now, |_, row| logits.extend_from_slice(row))?;
        rest = later;
    }
    Ok(())
}

fn read_hidden(
    session: &mut Session,
    tokens: &[u32],
    pieces: &[usize],
    hidden: &mut Vec<f32>,
) -> Result<()> {
    let mut rest = tokens;
    for &piece in pieces {
        let (now, later) = rest.split_at(piece);
        session.feed_states(now, |_, state| hidden.extend_from_slice(state))?;
        rest = later;
    }
    Ok(())
}

/// Splits `tokens` into random pieces of 1 to 23 tokens. The same seed gives the same pieces.
fn ragged(tokens: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut pieces = Vec::new();
    let mut left = tokens;
    while left > 0 {
        // A linear congruential generator (Knuth's MMIX constants); any sequence would do.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let piece = (1 + (state >> 33) as usize % 23).min(left);
        pieces.push(piece);
        left -= piece;
    }
    pieces
}

fn compare(ours: &[f32], theirs: &[f32]) -> Difference {
    let mut difference = Difference::default();
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (a, b) in ours.iter().zip(theirs) {
        // Equal infinities (the scores of sinks) do not differ; a NaN differs from everything.
        let d = if a == b { 0.0 } else { (a - b).abs() };
        difference.absolute = if d.is_nan() {
            f32::INFINITY
        } else {
            difference.absolute.max(d)
        };
        if b.is_finite() {
            error += f64::from(d).powi(2);
            norm += f64::from(*b).powi(2);
        }
    }
    difference.relative = (error / norm.max(f64::MIN_POSITIVE)).sqrt();
    difference
}

/// Compares the most probable tokens of every row.
fn top_one(ours: &[f32], vocab: usize, best: &[Best], tolerance: f32) -> TopOne {
    let mut top = TopOne::default();
    for (row, theirs) in ours.chunks_exact(vocab).zip(best) {
        top.rows += 1;
        if Best::new(row).token == theirs.token {
            top.equal += 1;
        } else if theirs.lead > tolerance {
            top.different += 1;
        }
    }
    top
}

/// Compares two final states, tensor by tensor. Counters must be equal. Differences of floats are divided by the tensor's
/// largest value if that exceeds one, because the tolerance is meant for logits of a few units.
fn compare_states(a: &Snapshot, b: &Snapshot) -> Difference {
    let mut worst = Difference::default();
    for ((tensor, a), (_, b)) in a.tensors().zip(b.tensors()) {
        let format = match tensor.dtype {
            StateDtype::F16 => &F16,
            StateDtype::F32 => &F32,
            _ if a == b => continue,
            _ => {
                return Difference {
                    absolute: f32::INFINITY,
                    relative: f64::INFINITY,
                };
            }
        };
        let decode = |bytes: &[u8]| {
            let mut values = vec![0.0; bytes.len() / format.block_bytes];
            format.decode(bytes, &mut values);
            values
        };
        let difference = compare_state(&decode(a), &decode(b));
        worst.absolute = worst.absolute.max(difference.absolute);
        worst.relative = worst.relative.max(difference.relative);
    }
    worst
}

/// Compares two state tensors of floats.
fn compare_state(a: &[f32], b: &[f32]) -> Difference {
    let mut difference = compare(a, b);
    let finite = b.iter().filter(|value| value.is_finite());
    difference.absolute /= finite.fold(1.0f32, |most, value| most.max(value.abs()));
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_measured_in_their_largest_value_where_it_exceeds_one() {
        let measure = |a: &[f32], b: &[f32]| compare_state(a, b).absolute;
        assert_eq!(measure(&[0.25, 0.5], &[0.25, 0.75]), 0.25);
        assert_eq!(measure(&[1.0, -8.0], &[2.0, -8.0]), 1.0 / 8.0);
        let scores = [f32::NEG_INFINITY, 4.0];
        assert_eq!(measure(&[f32::NEG_INFINITY, 3.0], &scores), 0.25);
        assert_eq!(measure(&[0.0, 4.0], &scores), f32::INFINITY);
        assert_eq!(measure(&[f32::NAN, 4.0], &[2.0, 4.0]), f32::INFINITY);
        assert!((compare_state(&[3.0, 5.0], &[3.0, 4.0]).relative - 0.2).abs() < 1e-12);
    }

    #[test]
    fn another_token_counts_where_the_recorded_logits_lie_apart() {
        let theirs = [1.0, 3.0, 2.0, 1.0, 3.0, 2.999, 5.0, 0.0, 0.0];
        let best: Vec<_> = theirs.chunks_exact(3).map(Best::new).collect();
        let ours = [1.0, 2.0, 3.0, 1.0, 2.999, 3.0, 4.0, 0.0, 0.0];
        let top = top_one(&ours, 3, &best, 0.01);
        assert_eq!((top.rows, top.equal, top.different), (3, 1, 1));
        let top = top_one(&ours, 3, &best, 1.5);
        assert_eq!((top.rows, top.equal, top.different), (3, 1, 0));
    }
}
