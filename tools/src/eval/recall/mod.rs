//! `waterline eval recall`: recall of facts at a distance.

mod levels;
mod marked;
mod report;
mod ruler;
mod table;
mod text;
mod tokens;

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use waterline::{Model, SamplerParams, Session, Tokenizer};

use super::ablation::{Mechanism, ablate};
use super::largest;
use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::page::Kind;
use crate::progress::{self, Unit};
use crate::session::SessionArgs;
use crate::write_model::check_output;
use report::{About, Counted, Report};

/// A sequence holds keys and their values in random order among filler, then a question for each key. The values are random, so
/// they cannot be guessed. After each question the right answer is fed, whatever the model predicted. An answer counts as right if
/// each of its tokens has the largest logit.
///
/// mqar: many pairs. needle: one pair in filler. needles: several pairs in filler. joint: the same keys in four contexts.
/// Only if named: marked, pairs with values of four tokens and a mark, among plain pairs; levels, the same keys in two
/// contexts within two others; table, a square table asked for context by context; s-niah-1 to s-niah-3, RULER's single
/// needles, as plain text instead of a chat.
///
/// A model with a tokenizer reads text, as a chat. A model without one reads the 256 tokens of tools/train/recall, whose
/// evaluation draws the same sequences from the same seeds.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Tasks, separated by commas.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mqar,needle,needles,joint"
    )]
    task: Vec<Task>,
    /// Numbers of keys, separated by commas; multiples of 4 for joint and levels, squares for table. The default is 8, 16,
    /// 32, 64 for mqar, 1 for needle and s-niah, 8 for needles, 4 for marked, 16, 32, 64 for joint and levels, and 16, 36, 64
    /// for table.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count())]
    keys: Vec<usize>,
    /// Lengths in tokens, separated by commas, reached with filler; 0 means no filler. The default is 256, 512, 1024,
    /// 2048 for needle and needles, 256, 512, 1024 for marked, 1024, 2048, 4096 for s-niah, and 0 for the others.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(..=1 << 30))]
    length: Vec<usize>,
    /// Sequences for each task, number of keys and length; four times as many for needle and s-niah, which have one question each.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count())]
    sequences: usize,
    /// Seed of the first sequence; each following sequence has the next seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Switch off mechanisms of the trained model first, separated by commas; an advantage that remains is not due to them.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    without: Vec<Mechanism>,
    /// Print one JSON object, with accuracy by distance.
    #[arg(long)]
    json: bool,
    /// Write a CSV file with a line for each task, number of keys and length.
    #[arg(long, value_name = "F")]
    csv: Option<PathBuf>,
    /// Write a self-contained page with plots of accuracy by number of keys and by distance. A name that ends in .svg
    /// writes only the plots.
    #[arg(long, value_name = "F", value_parser = crate::page::output)]
    html: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

/// A kind of question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Many pairs.
    Mqar,
    /// One pair.
    Needle,
    /// Several pairs.
    Needles,
    /// Keys that repeat in several contexts.
    Joint,
    /// Marked pairs with long values among many plain pairs; for models without a tokenizer.
    Marked,
    /// Keys that repeat in contexts within contexts; for models without a tokenizer.
    Levels,
    /// Square tables of contexts and keys; for models without a tokenizer.
    Table,
    /// RULER's first single needle: a number among repeated sentences; for models with a tokenizer.
    #[value(name = "s-niah-1")]
    #[serde(rename = "s-niah-1")]
    Sniah1,
    /// RULER's second single needle: a number in stories.
    #[value(name = "s-niah-2")]
    #[serde(rename = "s-niah-2")]
    Sniah2,
    /// RULER's third single needle: a UUID in stories.
    #[value(name = "s-niah-3")]
    #[serde(rename = "s-niah-3")]
    Sniah3,
}

impl Task {
    /// Whether each sequence has only one question.
    fn has_one_question(self) -> bool {
        self == Task::Needle || self.is_ruler()
    }

    fn is_ruler(self) -> bool {
        matches!(self, Task::Sniah1 | Task::Sniah2 | Task::Sniah3)
    }

    /// Whether the task exists only for models without a tokenizer.
    fn is_of_tokens(self) -> bool {
        matches!(self, Task::Marked | Task::Levels | Task::Table)
    }

    fn name(self) -> String {
        let value = self.to_possible_value().expect("every task can be named");
        value.get_name().to_string()
    }
}

/// Contexts of joint recall, and innermost contexts of levels.
const JOINT_CONTEXTS: usize = 4;

/// One row of the results table.
#[derive(Clone, Copy)]
struct Setting {
    task: Task,
    /// The number of pairs, which is also the number of questions.
    keys: usize,
    /// The length in tokens to reach with filler; 0 for no filler.
    length: usize,
}

/// The tokens to feed, and the questions in them.
struct Sequence {
    tokens: Vec<u32>,
    /// The questions, in the order of their tokens.
    questions: Vec<Question>,
}

/// A question whose answer is in the sequence.
struct Question {
    /// Positions of the answer's tokens.
    answer: Range<usize>,
    /// Number of tokens from the value to the end of its question.
    distance: usize,
}

/// The source of sequences.
enum Generator {
    Tokens,
    /// Conversations, or plain texts after a BOS token.
    Text {
        chat: Option<Box<text::Writer>>,
        tokenizer: Arc<Tokenizer>,
        bos: Option<u32>,
    },
}

impl Generator {
    /// Creates the generator for a model and tasks: text if the model has a tokenizer, otherwise tokens.
    fn new(model: &Arc<Model>, tasks: &[Task]) -> Result<Self> {
        if model.has_tokenizer() {
            // Plain texts need no chat template.
            let chat = if tasks.iter().all(|task| task.is_ruler()) {
                None
            } else {
                Some(Box::new(text::Writer::new(model)?))
            };
            return Ok(Generator::Text {
                chat,
                tokenizer: model.tokenizer()?,
                bos: model.bos(),
            });
        }
        let vocab = model.spec().vocab;
        if vocab < tokens::VOCAB {
            let reason = format!(
                "the model has no tokenizer and {vocab} tokens; recall needs a tokenizer or {} tokens",
                tokens::VOCAB
            );
            return Err(Error::input(model.file(), reason));
        }
        Ok(Generator::Tokens)
    }

    /// The form of the questions: `text` or `tokens`.
    fn form(&self) -> &'static str {
        match self {
            Generator::Tokens => "tokens",
            Generator::Text { .. } => "text",
        }
    }

    fn most_keys(&self) -> usize {
        match self {
            Generator::Tokens => tokens::MOST_KEYS,
            Generator::Text { .. } => text::MOST_KEYS,
        }
    }

    fn sequence(&self, setting: &Setting, seed: u64) -> Result<Sequence> {
        match self {
            Generator::Tokens => Ok(match setting.task {
                Task::Marked => marked::sequence(setting, seed),
                Task::Levels => levels::sequence(setting, seed),
                Task::Table => table::sequence(setting, seed),
                _ => tokens::sequence(setting, seed),
            }),
            Generator::Text {
                chat: Some(writer), ..
            } if !setting.task.is_ruler() => writer.sequence(setting, seed),
            Generator::Text { tokenizer, bos, .. } => {
                ruler::sequence(tokenizer, *bos, setting, seed)
            }
        }
    }

    /// Fails if the model cannot read one of the tasks.
    fn check(&self, tasks: &[Task]) -> Result<()> {
        let is_text = self.form() == "text";
        let unfit = |task: &&Task| {
            if is_text {
                task.is_of_tokens()
            } else {
                task.is_ruler()
            }
        };
        match tasks.iter().find(unfit) {
            None => Ok(()),
            Some(task) => {
                let with = if is_text { "without" } else { "with" };
                let name = task.name();
                Err(Error::usage(format!(
                    "--task {name} is for models {with} a tokenizer"
                )))
            }
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    for path in [&args.csv, &args.html].into_iter().flatten() {
        check_output(path, None)?;
    }
    let mut checkpoint = args.open.checkpoint(args.model.as_deref())?;
    let hash = checkpoint.identity().label();
    for &mechanism in &args.without {
        ablate(&mut checkpoint, mechanism)?;
    }
    let model = Model::bind(checkpoint)?;
    let generator = Generator::new(&model, &args.task)?;
    generator.check(&args.task)?;
    let settings = settings(args, generator.most_keys())?;
    let mut session = args.session.open(&model, SamplerParams::default(), 0)?;
    let canceller = session.canceller();
    on_first_interrupt(move || canceller.cancel())?;

    let sequences = |setting: &Setting| {
        if setting.task.has_one_question() {
            4 * args.sequences
        } else {
            args.sequences
        }
    };
    let cost = |setting: &Setting| setting.length.max(5 * setting.keys);
    let bar = progress::bar(
        settings.iter().map(|s| sequences(s) * cost(s)).sum(),
        Unit::Share,
    );
    let mut counted = Vec::with_capacity(settings.len());
    for setting in &settings {
        bar.set_message(setting.task.name());
        let mut result = Counted::new(setting);
        for i in 0..sequences(setting) {
            let sequence = generator.sequence(setting, args.seed.wrapping_add(i as u64))?;
            let right = answers(&mut session, &sequence)?;
            result.add(&sequence.questions, &right);
            bar.inc(cost(setting) as u64);
        }
        counted.push(result);
    }
    bar.finish_and_clear();

    let about = About {
        hash,
        without: args.without.clone(),
        form: generator.form(),
        seed: args.seed,
    };
    let report = Report::new(model.file(), about, counted);
    if let Some(path) = &args.csv {
        crate::text::write(path, &report.to_csv())?;
    }
    if let Some(path) = &args.html {
        crate::text::write(path, &report.to_page().write(Kind::new(path)))?;
    }
    let text = if args.json {
        report.to_json()
    } else {
        report.to_text()
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(Error::Stdout)?;
    Ok(ExitCode::SUCCESS)
}

/// Combines every task with each of its numbers of keys and lengths.
fn settings(args: &Args, most_keys: usize) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    for &task in &args.task {
        let (keys, lengths): (&[usize], &[usize]) = match task {
            Task::Mqar => (&[8, 16, 32, 64], &[0]),
            Task::Needle => (&[1], &[256, 512, 1024, 2048]),
            Task::Needles => (&[8], &[256, 512, 1024, 2048]),
            Task::Joint | Task::Levels => (&[16, 32, 64], &[0]),
            Task::Table => (&[16, 36, 64], &[0]),
            Task::Marked => (&[4], &[256, 512, 1024]),
            Task::Sniah1 | Task::Sniah2 | Task::Sniah3 => (&[1], &[1024, 2048, 4096]),
        };
        let chosen = |chosen: &Vec<usize>, usual: &[usize]| {
            if chosen.is_empty() {
                usual.to_vec()
            } else {
                chosen.clone()
            }
        };
        let most = match task {
            // Plain pairs need a key that is not marked.
            Task::Marked => most_keys - 1,
            Task::Joint | Task::Levels => most_keys * JOINT_CONTEXTS,
            Task::Table => table::MOST_SIDE.pow(2),
            _ if task.is_ruler() => 1,
            _ => most_keys,
        };
        for keys in chosen(&args.keys, keys) {
            let is_possible = match task {
                Task::Joint | Task::Levels => keys.is_multiple_of(JOINT_CONTEXTS),
                Task::Table => table::side(keys).is_some(),
                _ => true,
            };
            if !is_possible || keys > most {
                let name = task.name();
                return Err(Error::usage(format!(
                    "--keys {keys}: {name} takes up to {most} keys for this model; joint and levels a multiple of {JOINT_CONTEXTS}, table a square"
                )));
            }
            let lengths = chosen(&args.length, lengths).into_iter();
            settings.extend(lengths.map(|length| Setting { task, keys, length }));
        }
    }
    Ok(settings)
}

/// Returns, for each question, whether the model's most probable tokens are the answer.
fn answers(session: &mut Session, sequence: &Sequence) -> Result<Vec<bool>> {
    session.reset()?;
    let tokens = &sequence.tokens;
    let mut right = vec![true; sequence.questions.len()];
    // Logits are needed only from the first question on.
    let asked = sequence.questions.first().map_or(0, |q| q.answer.start - 1);
    let end = sequence.questions.last().map_or(0, |q| q.answer.end - 1);
    session.feed(&tokens[..asked])?;
    let (mut question, mut finite) = (0, true);
    session.feed_each(&tokens[asked..end], |index, logits| {
        let next = asked + index + 1;
        while sequence.questions[question].answer.end <= next {
            question += 1;
        }
        if sequence.questions[question].answer.contains(&next) {
            let best = largest(logits);
            finite &= logits[best].is_finite();
            right[question] &= best == tokens[next] as usize;
        }
    })?;
    if !finite {
        let reason = "the logits are not finite";
        return Err(Error::input(session.model().file(), reason));
    }
    Ok(right)
}
