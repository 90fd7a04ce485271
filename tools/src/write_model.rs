//! Writes a model as GGUF, one tensor after another and piece by piece, so that only a few pieces are in memory.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use indicatif::ProgressBar;
use waterline::internal::{Checkpoint, WeightSpec};
use waterline::physical_cores;
use waterline_quant::gguf::{NewTensor, Value, Writer};
use waterline_quant::{Format, Tensor};

use crate::error::{Error, Result};
use crate::format_choice::{Choice, FormatArgs, Layout};
use crate::interrupt::Interrupt;
use crate::mix::Facts;
use crate::progress::{self, Unit};
use crate::random::Random;
use crate::units;

/// The source of a tensor's values.
pub enum Values {
    /// A tensor of another file.
    Stored(Tensor),
    /// Random numbers.
    Random(Random),
}

/// A tensor to write.
pub struct TensorSource {
    /// The name and shape in the file.
    pub weight: WeightSpec,
    /// The tensor's values.
    pub values: Values,
    /// The mean square of each column's input, for stacked matrices one after another; empty if unknown.
    pub importance: Vec<f32>,
}

/// Number of values that one thread converts at a time.
const PIECE: usize = 1 << 20;

/// Writes `sources` in their chosen formats, and prints a summary. The file appears under its name only when it is complete.
pub fn write_model(
    path: &Path,
    metadata: &[(String, Value)],
    sources: &[TensorSource],
    chosen: &[Choice],
) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    note_fallbacks(sources, chosen);
    check_encoders(sources, chosen)?;
    let tensors: Vec<NewTensor> = sources
        .iter()
        .zip(chosen)
        .map(|(source, choice)| NewTensor {
            name: source.weight.name.clone(),
            format: choice.stored,
            shape: source.weight.shape.clone(),
        })
        .collect();
    let mut writer = Writer::create(path, metadata, &tensors).map_err(Error::Output)?;
    let total: usize = sources.iter().map(|source| source.weight.len()).sum();
    let bar = progress::bar(total, Unit::Of("weights"));
    let mut bytes = 0;
    for (source, choice) in sources.iter().zip(chosen) {
        bar.set_message(source.weight.name.clone());
        bytes += write_tensor(&mut writer, source, choice.stored, &interrupt, &bar)?;
    }
    bar.finish_and_clear();
    writer.finish().map_err(Error::Output)?;
    let bits = 8.0 * bytes as f64 / total as f64;
    let (parameters, bytes) = (units::count(total), units::bytes(bytes));
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{}: {parameters} parameters, {bytes}, {bits:.2} bits each",
        path.display()
    )
    .map_err(Error::Stdout)
}

/// Refuses a format without an encoder, unless the numbers are random or are stored in this format.
fn check_encoders(sources: &[TensorSource], chosen: &[Choice]) -> Result<()> {
    for (source, Choice { stored, .. }) in sources.iter().zip(chosen) {
        match &source.values {
            Values::Stored(tensor) if !stored.has_encoder() && tensor.format != *stored => {
                let name = &source.weight.name;
                return Err(Error::usage(format!(
                    "{name} as {stored}: this format is only read; choose one that --help lists"
                )));
            }
            _ => (),
        }
    }
    Ok(())
}

/// Refuses an output that is the input, that would replace something other than a file, or whose folder does not exist.
pub fn check_output(path: &Path, input: Option<&Path>) -> Result<()> {
    let output = match path.canonicalize() {
        Ok(output) => output,
        // For example a symbolic link to itself.
        Err(e) if path.is_symlink() && e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(path, e));
        }
        Err(_) => {
            let folder = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            return if folder.is_none_or(Path::is_dir) {
                Ok(())
            } else {
                Err(Error::input(path, "there is no such folder"))
            };
        }
    };
    if !output.is_file() {
        return Err(Error::input(
            path,
            "exists and is not a file; choose another name for the output",
        ));
    }
    let Some(input) = input.and_then(|input| input.canonicalize().ok()) else {
        return Ok(());
    };
    if output == input || output.parent() == Some(&input) {
        return Err(Error::input(
            path,
            "is the input, or a part of it; choose another name for the output",
        ));
    }
    Ok(())
}

/// Returns the tensors of a checkpoint, in the order of its description.
pub fn sources(checkpoint: &Checkpoint) -> Vec<TensorSource> {
    let source = |(weight, stored): (WeightSpec, WeightSpec)| {
        let tensor = checkpoint.tensors.get(&weight.name)?.clone();
        Some(TensorSource {
            weight: stored,
            values: Values::Stored(tensor),
            importance: Vec::new(),
        })
    };
    // An opened checkpoint has every tensor of its description.
    checkpoint.stored().into_iter().filter_map(source).collect()
}

/// Chooses the formats of a checkpoint's tensors, for a file with this program's tensor names.
pub fn choose(
    checkpoint: &Checkpoint,
    sources: &[TensorSource],
    formats: &FormatArgs,
) -> Result<Vec<Choice>> {
    let is_weighed = sources.iter().any(|source| !source.importance.is_empty());
    let weights: Vec<&WeightSpec> = sources.iter().map(|source| &source.weight).collect();
    let facts = Facts {
        layers: checkpoint.spec.layers.len(),
        is_weighed,
        ..Facts::default()
    };
    formats.choose(&weights, facts, Layout::Own)
}

/// Prints a note for each pair of a requested format and the format that replaced it.
fn note_fallbacks(sources: &[TensorSource], chosen: &[Choice]) {
    let mut classes: Vec<(Choice, usize, &WeightSpec)> = Vec::new();
    for (source, choice) in sources.iter().zip(chosen) {
        let pair = (choice.wanted, choice.stored);
        let class = classes
            .iter_mut()
            .find(|(known, ..)| (known.wanted, known.stored) == pair);
        match class {
            _ if choice.wanted == choice.stored => {}
            Some((_, count, _)) => *count += 1,
            None => classes.push((*choice, 1, &source.weight)),
        }
    }
    for (Choice { wanted, stored }, count, first) in classes {
        let tensors = if count == 1 {
            "tensor is"
        } else {
            "tensors are"
        };
        let cols = first.shape.last().copied().unwrap_or(1);
        // A note that cannot be printed is not an error.
        let _ = writeln!(
            std::io::stderr(),
            "note: {count} {tensors} stored as {stored} instead of {wanted}, whose blocks of {} do not fit into rows such as those of {cols} \
             numbers of {}",
            wanted.block_len,
            first.name
        );
    }
}

/// Writes one tensor, several pieces at a time. Returns its size in bytes.
fn write_tensor(
    writer: &mut Writer,
    source: &TensorSource,
    format: &'static Format,
    interrupt: &Interrupt,
    bar: &ProgressBar,
) -> Result<usize> {
    let cols = source.weight.shape.last().copied().unwrap_or(1).max(1);
    let rows = source.weight.len() / cols;
    let step = (PIECE / cols).max(1);
    let pieces: Vec<Range<usize>> = (0..rows)
        .step_by(step)
        .map(|row| row..rows.min(row + step))
        .collect();
    let mut bytes = 0;
    for batch in pieces.chunks(physical_cores()) {
        interrupt.check()?;
        let encoded = std::thread::scope(|scope| {
            let jobs: Vec<_> = batch
                .iter()
                .map(|rows| scope.spawn(|| encode(source, rows.clone(), format)))
                .collect();
            jobs.into_iter()
                .map(|job| {
                    job.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect::<Vec<_>>()
        });
        for (piece, rows) in encoded.into_iter().zip(batch) {
            let piece = piece?;
            writer.write_tensor(&piece).map_err(Error::Output)?;
            bytes += piece.len();
            bar.inc((rows.len() * cols) as u64);
        }
    }
    Ok(bytes)
}

/// Encodes some rows of a tensor in `format`.
fn encode(source: &TensorSource, rows: Range<usize>, format: &'static Format) -> Result<Vec<u8>> {
    let shape = &source.weight.shape;
    let cols = shape.last().copied().unwrap_or(1).max(1);
    let mut decoded = vec![0.0; rows.len() * cols];
    match &source.values {
        Values::Stored(tensor) => {
            let row_bytes = tensor.format.row_bytes(cols)?;
            let stored = &tensor.data[rows.start * row_bytes..rows.end * row_bytes];
            if let Some(same) = format.reorder(stored, tensor.format) {
                return Ok(same);
            }
            tensor.format.decode(stored, &mut decoded);
        }
        Values::Random(random) => random.fill(rows.start * cols, &mut decoded),
    }
    let row_bytes = format.row_bytes(cols)?;
    let mut encoded = vec![0; row_bytes * rows.len()];
    if source.importance.is_empty() {
        format.encode_or_imitate(&decoded, &mut encoded);
        return Ok(encoded);
    }
    let rows_of_a_matrix = shape.len().checked_sub(2).map_or(1, |axis| shape[axis]);
    let stored = decoded.chunks(cols).zip(encoded.chunks_mut(row_bytes));
    for (row, (numbers, bytes)) in rows.zip(stored) {
        let inputs = &source.importance[row / rows_of_a_matrix * cols..][..cols];
        format.encode_row(numbers, inputs, bytes);
    }
    Ok(encoded)
}
