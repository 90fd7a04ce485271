//! `waterline eval ppl`: perplexity of documents or of llama-perplexity's windows, and the distance from saved logits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use serde_json::{Map, Value, json};
use waterline::{SamplerParams, Session};

use super::likelihood::{self, Headline};
use super::log_sum::LogSum;
use super::mean::Mean;
use super::saved_logits::{Reader, Writer};
use super::windows::Windows;
use super::{largest, output};
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::progress::{self, Unit};
use crate::text::read_text;
use crate::write_model::check_output;

/// With --ctx or --kl, FILE is one plain text, read as llama-perplexity reads it: in windows of N tokens, each from an empty
/// state. The tokens after the middle of each window are counted. The first token of a window is replaced by the token that the
/// tokenizer puts before texts, if there is one. The standard error is over tokens.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    text: likelihood::Args,
    /// Tokens per window.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(4..1 << 20))]
    ctx: Option<usize>,
    /// Write the probabilities of all tokens to FILE, in llama-perplexity's format.
    #[arg(long, value_name = "FILE", requires = "ctx")]
    save_logits: Option<PathBuf>,
    /// Compare with the probabilities in FILE, which --save-logits or llama-perplexity wrote for the same text. Prints the
    /// Kullback-Leibler divergence and how often the most probable tokens agree.
    #[arg(long, value_name = "FILE", conflicts_with = "save_logits")]
    kl: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.ctx.is_none() && args.kl.is_none() {
        return likelihood::run(&args.text, Headline::Perplexity);
    }
    let text = &args.text;
    text.output.check()?;
    let (model, from) = output::open(text.open, text.model.as_deref(), &text.without)?;
    let tokenizer = model.tokenizer()?;
    let file = read_text(&text.file)?;
    let vocab = model.spec().vocab;
    let (mut base, windows) = match &args.kl {
        None => {
            let length = args.ctx.unwrap_or_default();
            let windows = Windows::new(&file, &tokenizer, model.bos(), length)?;
            (None, windows)
        }
        Some(path) => {
            let (base, length, tokens) = Base::open(path, args.ctx, vocab)?;
            let mut windows = Windows::new(&file, &tokenizer, model.bos(), length)?;
            // llama-perplexity's --chunks leaves windows out.
            if windows.tokens.get(..tokens.len()) != Some(&tokens) {
                let reason = "was written for another text, or by another tokenizer";
                return Err(Error::input(path, reason));
            }
            windows.tokens.truncate(tokens.len());
            (Some(base), windows)
        }
    };
    let mut saved = match &args.save_logits {
        Some(path) => {
            check_output(path, text.model.as_deref())?;
            Some(Writer::create(path, &windows, vocab)?)
        }
        None => None,
    };
    let session = text.session.with_context(windows.length);
    let mut session = session.open(&model, SamplerParams::default(), 0)?;
    let canceller = session.canceller();
    on_first_interrupt(move || canceller.cancel())?;

    let nats = measure(&mut session, &windows, base.as_mut(), saved.as_mut())?;
    if !nats.value().is_finite() {
        return Err(Error::input(model.file(), "the logits are not finite"));
    }
    saved.map_or(Ok(()), Writer::finish)?;
    let (perplexity, error) = nats.exp();
    let mut values = Map::new();
    for (name, value) in [
        ("model", json!(model.file())),
        ("file", json!(text.file)),
        ("ctx", json!(windows.length)),
        ("windows", json!(windows.count())),
        ("tokens", json!(nats.count())),
        ("perplexity", json!(perplexity)),
        ("perplexity_stderr", json!(error)),
    ] {
        values.insert(name.into(), value);
    }
    let mut shown = format!("perplexity     {perplexity:.4} ± {error:.4} per token\n");
    if let Some(base) = base {
        shown += &base.report(&mut values);
    }
    shown += &format!(
        "{} windows of {} tokens, {} tokens after their middles\n",
        windows.count(),
        windows.length,
        nats.count()
    );
    text.output.print(&shown, values, &from)
}

/// Reads all windows. Returns the mean of -ln(probability) over the counted tokens.
fn measure(
    session: &mut Session,
    windows: &Windows,
    mut base: Option<&mut Base>,
    mut saved: Option<&mut Writer>,
) -> Result<Mean> {
    let bar = progress::bar(windows.tokens.len(), Unit::Of("tokens"));
    let mut nats = Mean::default();
    for index in 0..windows.count() {
        let mut failure = Ok(());
        windows.read(session, index, |logits, next| {
            let log_sum = LogSum::new(logits);
            let found = -log_sum.log_probability(logits[next as usize]);
            nats.add(found);
            let taken = match (&mut base, &mut saved) {
                (Some(base), _) => base.compare(logits, log_sum, next),
                (None, Some(saved)) => saved.push(logits, log_sum),
                (None, None) => Ok(()),
            };
            if failure.is_ok() {
                failure = taken;
            }
        })?;
        failure?;
        bar.inc(windows.length as u64);
        bar.set_message(format!("perplexity {:.4}", nats.exp().0));
    }
    bar.finish_and_clear();
    Ok(nats)
}

/// Comparison with saved probabilities.
struct Base {
    reader: Reader,
    log_probabilities: Vec<f32>,
    nats: Mean,
    divergence: Mean,
    /// The divergence at each position.
    all: Vec<f64>,
    same_top: Mean,
    /// Squared difference of the probabilities of the text's next token.
    difference: Mean,
}

impl Base {
    /// Opens a file of saved logits. Also returns the length of its windows and their tokens.
    fn open(path: &Path, ctx: Option<usize>, vocab: usize) -> Result<(Self, usize, Vec<u32>)> {
        let (reader, length, tokens) = Reader::open(path)?;
        if let Some(ctx) = ctx.filter(|&ctx| ctx != length) {
            let reason = format!("has windows of {length} tokens; --ctx says {ctx}");
            return Err(Error::input(path, reason));
        }
        if reader.vocab() > vocab {
            let saved = reader.vocab();
            let reason = format!("has a vocabulary of {saved}; the model has {vocab} tokens");
            return Err(Error::input(path, reason));
        }
        let base = Base {
            reader,
            log_probabilities: Vec::new(),
            nats: Mean::default(),
            divergence: Mean::default(),
            all: Vec::new(),
            same_top: Mean::default(),
            difference: Mean::default(),
        };
        Ok((base, length, tokens))
    }

    /// Adds one position, before the text's token `next`.
    fn compare(&mut self, logits: &[f32], log_sum: LogSum, next: u32) -> Result<()> {
        self.reader.next(&mut self.log_probabilities)?;
        let base = &self.log_probabilities;
        let mut divergence = 0.0;
        for (&base, &logit) in base.iter().zip(logits) {
            // The file does not distinguish lower log probabilities.
            if base > -16.0 {
                let base = f64::from(base);
                divergence += base.exp() * (base - log_sum.log_probability(logit));
            }
        }
        let expected = f64::from(base[next as usize]);
        self.nats.add(-expected);
        self.divergence.add(divergence);
        self.all.push(divergence);
        let same = largest(base) == largest(logits);
        self.same_top.add(f64::from(u8::from(same)));
        let difference = log_sum.log_probability(logits[next as usize]).exp() - expected.exp();
        self.difference.add(difference * difference);
        Ok(())
    }

    /// Returns lines for a person and adds the values to `values`.
    fn report(mut self, values: &mut Map<String, Value>) -> String {
        self.all.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let last = self.all.len() - 1;
            self.all[(share * last as f64).round() as usize]
        };
        let (perplexity, error) = self.nats.exp();
        let (divergence, divergence_error) = (self.divergence.value(), self.divergence.error());
        let (top, top_error) = (self.same_top.value(), self.same_top.error());
        for (name, value) in [
            ("base_perplexity", perplexity),
            ("base_perplexity_stderr", error),
            ("kl_divergence", divergence),
            ("kl_divergence_stderr", divergence_error),
            ("kl_divergence_median", rank(0.5)),
            ("kl_divergence_90", rank(0.9)),
            ("kl_divergence_99", rank(0.99)),
            ("kl_divergence_max", rank(1.0)),
            ("same_top", top),
            ("same_top_stderr", top_error),
            ("rms_probability_difference", self.difference.value().sqrt()),
        ] {
            values.insert(name.into(), json!(value));
        }
        format!(
            "saved logits   {perplexity:.4} ± {error:.4} per token\n\
             KL divergence  {divergence:.6} ± {divergence_error:.6}, median {:.6}, 99 % under {:.6}, largest {:.6}\n\
             same top token {:.3} ± {:.3} %\n",
            rank(0.5),
            rank(0.99),
            rank(1.0),
            100.0 * top,
            100.0 * top_error,
        )
    }
}
