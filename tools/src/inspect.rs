//! `waterline inspect`: a model's description and the memory of a session, from the file's header alone.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use waterline::internal::{Checkpoint, LayerSpec};
use waterline::{Device, Model, StateFile, StateOptions, StatePlan, Touched};
use waterline_quant::Tensor;

use crate::builtin::OpenArgs;
use crate::check;
use crate::error::{Error, Result};
use crate::hyperparameters;
use crate::inspect_state;
use crate::prompt::rendered;
use crate::retention;
use crate::session::StateArgs;
use crate::text::{json_line, shown};
use crate::units;

/// Show a model's description and the memory that a session needs.
///
/// Only the header is read, so this is fast for any size; --check reads every weight, and --retention reads a text.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory, or a state file.
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Read every weight and a few tokens, and name the tensors that hold non-finite numbers and the first layer that computes
    /// one; the exit status is 1 if there are any.
    #[arg(long, conflicts_with = "json")]
    check: bool,
    /// Read a text and show, for each head with a retained set, the share of the tokens outside the window that it holds.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["check", "schedule"])]
    retention: Option<PathBuf>,
    /// Show the model's ops, with their operands and dependencies.
    #[arg(long, conflicts_with = "check")]
    schedule: bool,
    /// The GPU architecture for which --schedule shows how the decode kernel keeps each order.
    #[arg(
        long,
        value_name = "ARCH",
        default_value = "sm_90",
        requires = "schedule"
    )]
    arch: String,
    /// With --schedule: print the source of the decode kernel that the GPU's compiler reads, with a function for each op.
    #[arg(long, requires = "schedule", conflicts_with = "json")]
    source: bool,
    /// The number of multiprocessors of that GPU.
    #[arg(long, value_name = "N", default_value_t = 132, requires = "schedule", value_parser = clap::value_parser!(u32).range(1..=1024))]
    processors: u32,
    /// Print one JSON object, with every tensor and every state tensor.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The options of a session's state.
    fn options(&self, checkpoint: &Checkpoint) -> StateOptions {
        self.state.options(checkpoint.trained_context)
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = args.model.as_deref().filter(|path| StateFile::is_at(path)) {
        return inspect_state::run(path, args.json);
    }
    let checkpoint = args.open.checkpoint(args.model.as_deref())?;
    if args.check {
        return check::run(&checkpoint);
    }
    if args.schedule {
        return schedule(checkpoint, args);
    }
    let text = match &args.retention {
        Some(path) => {
            let model = Model::bind(checkpoint)?;
            let state = args.state.options(model.trained_context());
            let (text, json) = retention::of_text(&model, path, state)?;
            if args.json { json_line(&json) } else { text }
        }
        None => {
            let plan = checkpoint.spec.plan(&args.options(&checkpoint))?;
            let blocks = blocks(&checkpoint, &plan, args)?;
            if args.json {
                json_line(&to_json(&checkpoint, &plan, &blocks, args))
            } else {
                shown(&to_text(&checkpoint, &plan, &blocks))
            }
        }
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::Stdout)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the ops and their dependencies.
fn schedule(checkpoint: Checkpoint, args: &Args) -> Result<ExitCode> {
    let device = Device::compile_only(&args.arch, args.processors, None);
    let options = args.options(&checkpoint);
    let schedule = Model::bind(checkpoint)?.schedule_on(&options, &device)?;
    let text = if args.source {
        device.source_of("decode_kernel").ok_or_else(|| {
            let gpu = schedule.gpu.clone().unwrap_or_default();
            Error::Usage(format!("--source: no decode kernel: {gpu}"))
        })?
    } else if args.json {
        json_line(&schedule)
    } else {
        schedule.to_string()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::Stdout)?;
    Ok(ExitCode::SUCCESS)
}

/// The tensors in the order of the model's description.
pub fn tensors(checkpoint: &Checkpoint) -> impl Iterator<Item = (String, &Tensor)> {
    let weights = checkpoint.spec.weights().into_iter();
    weights.filter_map(|weight| {
        checkpoint
            .tensors
            .get(&weight.name)
            .map(|tensor| (weight.name, tensor))
    })
}

/// Size of the weights in bytes.
pub fn weight_bytes(checkpoint: &Checkpoint) -> usize {
    tensors(checkpoint)
        .map(|(_, tensor)| tensor.data.len())
        .sum()
}

/// Byte counts of a block.
struct Block {
    weights: usize,
    state: usize,
    /// State bytes that are read and written for the context's last token.
    read: usize,
    written: usize,
}

fn blocks(checkpoint: &Checkpoint, plan: &StatePlan, args: &Args) -> Result<Vec<Block>> {
    let model = Model::bind(checkpoint.clone())?;
    let touched = model.touched(plan, last_position(checkpoint, args));
    let of_layer = |layer: usize| {
        let tensors = plan.tensors().iter();
        let own = tensors.filter(|tensor| tensor.layer == Some(layer));
        own.map(|tensor| tensor.bytes).sum()
    };
    let mut blocks: Vec<Block> = (0..checkpoint.spec.layers.len())
        .map(|block| {
            let own = |t: &&Touched| plan.tensors()[t.tensor].layer == Some(block);
            let touched = touched.iter().filter(own);
            Block {
                weights: 0,
                state: of_layer(block),
                read: touched.clone().map(|t| t.read).sum(),
                written: touched.map(|t| t.written).sum(),
            }
        })
        .collect();
    for (name, tensor) in tensors(checkpoint) {
        if let (Some(block), _) = split_block(&name) {
            blocks[block].weights += tensor.data.len();
        }
    }
    Ok(blocks)
}

/// The position of the context's last token.
fn last_position(checkpoint: &Checkpoint, args: &Args) -> u64 {
    args.options(checkpoint).context as u64 - 1
}

fn to_json(checkpoint: &Checkpoint, plan: &StatePlan, blocks: &[Block], args: &Args) -> Value {
    let tensor = |(name, tensor): (String, &Tensor)| {
        json!({
            "name": name, "format": tensor.format.name, "shape": tensor.shape, "bytes": tensor.data.len(),
        })
    };
    let block = |(i, (spec, block)): (usize, (&LayerSpec, &Block))| {
        json!({
            "layer": i,
            "mixer": spec.kind(),
            "weight_bytes": block.weights,
            "bytes": block.state,
            "read_per_token": block.read,
            "written_per_token": block.written,
        })
    };
    let options = args.options(checkpoint);
    let sampling = checkpoint.text.sampling.iter();
    let sampling: Map<String, Value> = sampling
        .map(|(parameter, value)| (parameter.name.into(), json!(value)))
        .collect();
    json!({
        "file": checkpoint.file,
        "name": checkpoint.name,
        "parameters": checkpoint.spec.parameters(),
        "weight_bytes": weight_bytes(checkpoint),
        "spec": checkpoint.spec.to_json(),
        "tokenizer": checkpoint.text.tokenizer.is_some(),
        "chat_template": checkpoint.text.chat_template(),
        "chat_templates": checkpoint.text.templates.keys().collect::<Vec<_>>(),
        "bos": checkpoint.text.bos,
        "adds_bos": checkpoint.text.adds_bos,
        "eos": checkpoint.text.eos,
        "ends": checkpoint.text.ends,
        "sampling": sampling,
        "trained_context": checkpoint.trained_context,
        "notes": checkpoint.notes,
        "tensors": tensors(checkpoint).map(tensor).collect::<Vec<_>>(),
        "session": {
            "context": options.context,
            "kv": options.kv,
            "history": options.history,
            "bytes": plan.bytes(),
            "touched_at": last_position(checkpoint, args),
            "layers": checkpoint.spec.layers.iter().zip(blocks).enumerate().map(block).collect::<Vec<_>>(),
            "tensors": plan.tensors(),
        },
    })
}

fn to_text(checkpoint: &Checkpoint, plan: &StatePlan, blocks: &[Block]) -> String {
    let spec = &checkpoint.spec;
    let mut lines = vec![
        format!("file         {}", checkpoint.file),
        format!("name         {}", checkpoint.name),
        format!(
            "parameters   {} ({})",
            units::count(spec.parameters()),
            spec.parameters()
        ),
        format!(
            "weights      {} in {} tensors",
            units::bytes(weight_bytes(checkpoint)),
            spec.weights().len()
        ),
        format!("width        {}", spec.hidden),
        format!(
            "vocabulary   {}, output matrix {}",
            spec.vocab,
            if spec.tied {
                "tied to the embedding"
            } else {
                "separate"
            }
        ),
        match checkpoint.trained_context {
            Some(context) => format!(
                "trained on   texts of up to {} tokens",
                units::thousands(context as u64)
            ),
            None => "trained on   texts of unknown length".into(),
        },
    ];
    lines.extend(about_text(checkpoint));

    lines.push(String::new());
    let describe = |block: &LayerSpec| {
        let mut parts = block.to_json();
        let fields = parts.as_object_mut();
        let mlp = fields.and_then(|fields| {
            fields.remove("mixer");
            fields.remove("mlp")
        });
        let mut numbers = hyperparameters::in_words(&parts);
        if let Some(mlp) = mlp {
            numbers += &format!("; MLP {}", mlp["intermediate"]);
        }
        vec![block.kind().to_string(), numbers]
    };
    let rows = spec
        .layers
        .iter()
        .enumerate()
        .map(|(i, block)| Row::new(Some(i), describe(block), 0))
        .collect();
    lines.extend(table(["layer", "mixer", "hyperparameters"], rows, false));

    lines.push(String::new());
    let row = |(i, block): (usize, &Block)| {
        let bytes = [block.weights, block.state, block.read, block.written];
        Row::new(Some(i), bytes.map(|n| n.to_string()).to_vec(), 0)
    };
    let rows = blocks.iter().enumerate().map(row).collect();
    let head = ["layer", "bytes of weights", "state", "read", "written"];
    lines.extend(table(head, rows, false));
    lines.push("read and written: of the state, for the last token of the context, at most".into());

    lines.push(String::new());
    let row = |(name, tensor): (String, &Tensor)| {
        let (block, name) = split_block(&name);
        Row::new(
            block,
            vec![
                name,
                tensor.format.to_string(),
                format!("{:?}", tensor.shape),
            ],
            tensor.data.len(),
        )
    };
    lines.extend(table(
        ["layer", "tensor", "format", "shape"],
        tensors(checkpoint).map(row).collect(),
        true,
    ));

    lines.push(String::new());
    let row = |tensor: &waterline::StateTensorPlan| {
        let cells = vec![
            tensor.name.clone(),
            lower(&tensor.kind),
            lower(&tensor.dtype),
            format!("{:?}", tensor.shape),
        ];
        Row::new(tensor.layer, cells, tensor.bytes)
    };
    lines.extend(table(
        ["layer", "tensor", "kind", "type", "shape"],
        plan.tensors().iter().map(row).collect(),
        true,
    ));
    lines.push(format!(
        "session {} ({} bytes), constant while reading and generating",
        units::bytes(plan.bytes()),
        plan.bytes()
    ));
    lines.push(String::new());
    lines.join("\n")
}

/// Lines about the tokenizer, the template, and the tokens that begin and end a text.
fn about_text(checkpoint: &Checkpoint) -> Vec<String> {
    let text = &checkpoint.text;
    if text.tokenizer.is_none() {
        return vec!["tokenizer    none: the model reads and writes token numbers".into()];
    }
    let tokenizer = Model::bind(checkpoint.clone()).and_then(|model| model.tokenizer());
    let named = |id: &u32| match &tokenizer {
        Ok(tokenizer) => format!("{id} {}", rendered(tokenizer, &[*id])),
        Err(_) => id.to_string(),
    };
    let or_none = |parts: Vec<String>| match parts.len() {
        0 => "none".into(),
        _ => parts.join(", "),
    };
    let begin = text.begin();
    let begins = or_none(begin.iter().map(named).collect());
    let ends = or_none(text.ends.iter().map(named).collect());
    let names: Vec<&str> = text.templates.keys().map(String::as_str).collect();
    let template = match names.len() {
        0 => "none, chat uses ChatML".into(),
        1 => "yes".into(),
        n => format!("{n}: {}", names.join(", ")),
    };
    let sampling = match text.sampling.to_string() {
        none if none.is_empty() => "no defaults of its own".into(),
        stated => stated,
    };
    let broken = tokenizer.as_ref().err().map(ToString::to_string);
    vec![
        format!("tokenizer    {}", broken.unwrap_or("yes".into())),
        format!("template     {template}"),
        format!("begins with  {begins}"),
        format!("ends with    {ends}"),
        format!("sampling     {sampling}"),
    ]
}

/// The name of an enum's value in JSON.
fn lower(value: &impl serde::Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_string()
}

/// Splits `blk.7.ffn_up.weight` into block 7 and the rest.
fn split_block(name: &str) -> (Option<usize>, String) {
    let parts = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    match parts.and_then(|(block, rest)| Some((block.parse().ok()?, rest))) {
        Some((block, rest)) => (Some(block), rest.to_string()),
        None => (None, name.to_string()),
    }
}

/// A row of a table. Rows that differ only in the block are merged.
struct Row {
    blocks: Vec<usize>,
    cells: Vec<String>,
    bytes: usize,
}

impl Row {
    fn new(block: Option<usize>, cells: Vec<String>, bytes: usize) -> Self {
        Row {
            blocks: block.into_iter().collect(),
            cells,
            bytes,
        }
    }
}

fn table<const N: usize>(head: [&str; N], rows: Vec<Row>, with_bytes: bool) -> Vec<String> {
    let mut merged: Vec<Row> = Vec::new();
    for row in rows {
        match merged
            .iter_mut()
            .find(|other| other.cells == row.cells && !row.blocks.is_empty())
        {
            Some(other) => other.blocks.extend(row.blocks),
            None => merged.push(row),
        }
    }
    let mut head: Vec<String> = head.iter().map(|cell| cell.to_string()).collect();
    if with_bytes {
        head.push("bytes".into());
    }
    let mut lines = vec![head];
    for row in merged {
        let mut line = vec![list(&row.blocks)];
        line.extend(row.cells);
        if with_bytes {
            let times = if row.blocks.len() > 1 {
                format!("{} x ", row.blocks.len())
            } else {
                String::new()
            };
            line.push(format!("{times}{}", row.bytes));
        }
        lines.push(line);
    }
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let join = |line: &Vec<String>| {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    lines.iter().map(join).collect()
}

/// Formats block numbers: `0-3`, `0,2..22`, or one by one.
fn list(blocks: &[usize]) -> String {
    let step = match blocks {
        [] => return String::new(),
        [first, second, ..] => second - first,
        _ => 1,
    };
    let (first, last) = (blocks[0], blocks[blocks.len() - 1]);
    let even = blocks.windows(2).all(|pair| pair[1] - pair[0] == step);
    match (even, step, blocks.len()) {
        (true, 1, 3..) => format!("{first}-{last}"),
        (true, _, 4..) => format!("{first},{}..{last}", blocks[1]),
        _ => blocks
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_listed_briefly() {
        assert_eq!(list(&[]), "");
        assert_eq!(list(&[7]), "7");
        assert_eq!(list(&[0, 1, 2, 3]), "0-3");
        assert_eq!(list(&[1, 3, 5, 7, 9]), "1,3..9");
        assert_eq!(list(&[1, 2, 4]), "1,2,4");
    }

    #[test]
    fn block_numbers_are_taken_off_names() {
        assert_eq!(
            split_block("blk.12.ffn_up.weight"),
            (Some(12), "ffn_up.weight".into())
        );
        assert_eq!(split_block("output.weight"), (None, "output.weight".into()));
        assert_eq!(split_block("blk.x.y"), (None, "blk.x.y".into()));
    }
}
