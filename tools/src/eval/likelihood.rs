//! `waterline eval bpb` and `ppl`: the probability that a model assigns to a text.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::builder::RangedU64ValueParser;
use serde_json::{Map, Value, json};
use waterline::{PrefixStore, PrefixStoreOptions, SamplerParams};

use super::ablation::Mechanism;
use super::documents::{self, Encoder};
use super::log_sum::LogSum;
use super::output::{self, OutputArgs};
use super::ratio::Ratio;
use super::shared::Reader;
use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::progress::{self, Unit};
use crate::session::SessionArgs;

/// FILE is plain text, which is one document, or JSON lines with {"text": ...} or {"messages": [{"role", "content"}, ...]}.
/// Every document is read from an empty state, except that a beginning shared with the previous document is read only once. A
/// document longer than --tokens is read in several pieces. The log-probabilities of all tokens but the first of each piece are
/// summed, including control tokens. Bits per byte divides the sum by the bytes of the text; perplexity is per token. The standard
/// error is over documents. JSON has bits per token by position in the piece.
#[derive(clap::Args)]
pub struct Args {
    /// A text or JSONL file; - is standard input.
    pub(super) file: PathBuf,
    /// A GGUF file or a Hugging Face directory.
    pub(super) model: Option<PathBuf>,
    #[command(flatten)]
    pub(super) open: OpenArgs,
    /// Maximum tokens to read from one empty state.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = RangedU64ValueParser::<usize>::new().range(2..))]
    tokens: usize,
    /// Maximum number of documents.
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    limit: usize,
    /// Switch off mechanisms of the trained model first, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) without: Vec<Mechanism>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) session: SessionArgs,
}

/// The measure that is printed first.
#[derive(Clone, Copy, PartialEq)]
pub enum Headline {
    /// `bpb`.
    BitsPerByte,
    /// `ppl`.
    Perplexity,
}

/// The cost of one document.
#[derive(Clone, Copy, Default)]
struct Cost {
    bits: f64,
    /// Predicted tokens.
    tokens: usize,
    /// Bytes of text in the predicted tokens.
    bytes: usize,
}

/// The smallest upper bound of a position; each following bound is twice as large.
const NEAREST: usize = 64;

/// Predicted tokens and their bits by the number of tokens before them.
#[derive(Default)]
struct Positions(BTreeMap<usize, (usize, f64)>);

impl Positions {
    /// Adds the bits of all tokens of a piece but the first.
    fn add(&mut self, bits: &[f64]) {
        for (index, bits) in bits.iter().enumerate() {
            let bound = (index + 1).next_power_of_two().max(NEAREST);
            let (tokens, sum) = self.0.entry(bound).or_default();
            *tokens += 1;
            *sum += bits;
        }
    }

    fn to_json(&self) -> Value {
        let row = |(bound, (tokens, bits)): (&usize, &(usize, f64))| json!({"up_to": bound, "tokens": tokens, "bits_per_token": bits / *tokens as f64});
        self.0.iter().map(row).collect()
    }
}

/// Memory for the states at the ends of shared beginnings.
const STORE_BYTES: usize = 1 << 30;

/// Runs the command.
pub fn run(args: &Args, headline: Headline) -> Result<ExitCode> {
    let documents = documents::read(&args.file, args.limit)?;
    args.output.check()?;
    let (model, from) = output::open(args.open, args.model.as_deref(), &args.without)?;
    let mut encoder = Encoder::new(&model)?;
    let mut encoded = Vec::with_capacity(documents.len());
    for document in &documents {
        encoded.push(encoder.encode(document)?);
    }
    let mut store = PrefixStoreOptions::default();
    store.bytes = STORE_BYTES;
    let store = PrefixStore::new(store)?;
    let params = SamplerParams::default();
    let session = args.session.open_with_store(&model, params, store)?;
    let canceller = session.canceller();
    let mut reader = Reader::new(session);
    on_first_interrupt(move || canceller.cancel())?;

    let bar = progress::bar(encoded.iter().map(Vec::len).sum(), Unit::Of("tokens"));
    let start = Instant::now();
    let mut costs = Vec::with_capacity(encoded.len());
    let mut positions = Positions::default();
    for (index, tokens) in encoded.iter().enumerate() {
        let mut cost = Cost::default();
        let mut pieces = tokens.chunks(args.tokens).peekable();
        while let Some(piece) = pieces.next() {
            let follows = encoded.get(index + 1).filter(|_| pieces.peek().is_none());
            let next = follows.map_or(&[][..], |next| &next[..next.len().min(args.tokens)]);
            let bits = reader.bits(piece, next)?;
            cost.bits += bits.iter().sum::<f64>();
            cost.tokens += bits.len();
            positions.add(bits);
            cost.bytes += encoder.text_bytes(&piece[1..]);
        }
        if !cost.bits.is_finite() {
            let reason = format!("document {}: the logits are not finite", index + 1);
            return Err(Error::input(model.file(), reason));
        }
        costs.push(cost);
        bar.inc(tokens.len() as u64);
        let total = sum(&costs);
        bar.set_message(format!(
            "{:.4} bits per byte",
            total.bits / total.bytes as f64
        ));
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();

    let total = sum(&costs);
    if total.bytes == 0 {
        return Err(Error::input(&args.file, "there is no text in it"));
    }
    let per_byte = Ratio::over(costs.iter().map(|cost| (cost.bits, cost.bytes as f64)));
    let per_token = Ratio::over(costs.iter().map(|cost| (cost.bits, cost.tokens as f64)));
    let perplexity = Ratio {
        value: per_token.value.exp2(),
        // First-order error propagation.
        error: per_token
            .error
            .map(|error| error * std::f64::consts::LN_2 * per_token.value.exp2()),
    };
    let mut values = Map::new();
    for (name, value) in [
        ("model", json!(model.file())),
        ("file", json!(args.file)),
        ("documents", json!(costs.len())),
        ("tokens", json!(total.tokens)),
        ("bytes", json!(total.bytes)),
        ("bits", json!(total.bits)),
        ("bits_per_byte", json!(per_byte.value)),
        ("bits_per_byte_stderr", json!(per_byte.error)),
        ("bits_per_token", json!(per_token.value)),
        ("bits_per_token_stderr", json!(per_token.error)),
        ("perplexity", json!(perplexity.value)),
        ("perplexity_stderr", json!(perplexity.error)),
        ("most_tokens", json!(args.tokens)),
        ("by_position", positions.to_json()),
        ("without", json!(args.without)),
        ("shared_tokens", json!(reader.shared)),
        ("seconds", json!(seconds)),
    ] {
        values.insert(name.into(), value);
    }
    let mut lines = [
        format!("bits per byte  {}", per_byte.show()),
        format!("perplexity     {} per token", perplexity.show()),
    ];
    if headline == Headline::Perplexity {
        lines.reverse();
    }
    let shown = format!(
        "{}\n{}, {} tokens, {} bytes of text, {:.0} tokens/s\n",
        lines.join("\n"),
        match costs.len() {
            1 => "1 document".into(),
            n => format!("{n} documents"),
        },
        total.tokens,
        total.bytes,
        total.tokens as f64 / seconds
    );
    args.output.print(&shown, values, &from)
}

/// Returns -log2(probability) of `token`.
pub(super) fn surprise(logits: &[f32], token: u32) -> f64 {
    -LogSum::new(logits).log_probability(logits[token as usize]) / std::f64::consts::LN_2
}

fn sum(costs: &[Cost]) -> Cost {
    let add = |a: Cost, b: &Cost| Cost {
        bits: a.bits + b.bits,
        tokens: a.tokens + b.tokens,
        bytes: a.bytes + b.bytes,
    };
    costs.iter().fold(Cost::default(), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_averaged_by_position() {
        let mut positions = Positions::default();
        positions.add(&[1.0; 64]);
        positions.add(&[3.0; 66]);
        let expected = json!([
            {"up_to": 64, "tokens": 128, "bits_per_token": 2.0},
            {"up_to": 128, "tokens": 2, "bits_per_token": 3.0},
        ]);
        assert_eq!(positions.to_json(), expected);
    }

    #[test]
    fn surprise_is_the_logarithm_of_the_softmax() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        for (token, probability) in [(0, 0.125f64), (1, 0.25), (2, 0.625)] {
            assert!((surprise(&logits, token) + probability.log2()).abs() < 1e-6);
        }
        assert!((surprise(&[1000.0, 1000.0], 0) - 1.0).abs() < 1e-6);
    }
}
