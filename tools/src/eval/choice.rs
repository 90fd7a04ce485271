//! `waterline eval choice`: multiple-choice questions, scored like lm-evaluation-harness.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use waterline::{SamplerParams, Session, Tokenizer};

use super::ablation::Mechanism;
use super::likelihood::surprise;
use super::mean::Mean;
use super::output::{self, OutputArgs};
use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::progress::{self, Unit};
use crate::session::SessionArgs;
use crate::text::read_text;

/// FILE holds one JSON object per line, in the published format of ARC ("question", "choices", "answerKey") or HellaSwag
/// ("activity_label", "ctx_a", "ctx_b" or "ctx", "endings", "label"). The model does not see the answers together: each is read
/// after the question. The model's answer is the most probable one (acc), or the one with the largest log-probability per letter
/// (acc_norm). Prompts are those of lm-evaluation-harness without examples.
#[derive(clap::Args)]
pub struct Args {
    /// A JSONL file; - is standard input.
    file: PathBuf,
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Maximum number of questions.
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    limit: usize,
    /// Switch off mechanisms of the trained model first, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    without: Vec<Mechanism>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    session: SessionArgs,
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Arc {
        question: String,
        choices: Choices,
        #[serde(rename = "answerKey")]
        answer: String,
    },
    HellaSwag {
        #[serde(default)]
        activity_label: String,
        ctx_a: Option<String>,
        ctx_b: Option<String>,
        ctx: Option<String>,
        endings: Vec<String>,
        label: Value,
    },
}

#[derive(Deserialize)]
struct Choices {
    text: Vec<String>,
    label: Vec<String>,
}

/// A question as the model reads it.
#[derive(Debug, PartialEq)]
struct Question {
    prompt: String,
    answers: Vec<String>,
    /// Index of the right answer.
    right: usize,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.output.check()?;
    let questions = read(&args.file, args.limit)?;
    let (model, from) = output::open(args.open, args.model.as_deref(), &args.without)?;
    let tokenizer = model.tokenizer()?;
    // One mark: at the end of the question, where each of its answers begins.
    let mut session = args.session.open(&model, SamplerParams::default(), 1)?;
    let canceller = session.canceller();
    on_first_interrupt(move || canceller.cancel())?;

    let bar = progress::bar(questions.len(), Unit::Of("questions"));
    let (mut plain, mut normed) = (Mean::default(), Mean::default());
    for question in &questions {
        let nats = answer(&mut session, &tokenizer, model.bos(), question)?;
        if !nats.iter().all(|nats| nats.is_finite()) {
            return Err(Error::input(model.file(), "the logits are not finite"));
        }
        let letters = |answer: &String| answer.chars().count().max(1) as f64;
        let per_letter = nats.iter().zip(&question.answers);
        let per_letter = per_letter.map(|(nats, answer)| nats / letters(answer));
        for (mean, given) in [
            (&mut plain, least(nats.iter().copied())),
            (&mut normed, least(per_letter)),
        ] {
            mean.add(f64::from(u8::from(given == question.right)));
        }
        bar.inc(1);
        bar.set_message(format!("{:.1} % right", 100.0 * plain.value()));
    }
    bar.finish_and_clear();

    let mut values = Map::new();
    for (name, value) in [
        ("model", json!(model.file())),
        ("file", json!(args.file)),
        ("without", json!(args.without)),
        ("questions", json!(plain.count())),
        ("acc", json!(plain.value())),
        ("acc_stderr", json!(plain.error())),
        ("acc_norm", json!(normed.value())),
        ("acc_norm_stderr", json!(normed.error())),
    ] {
        values.insert(name.into(), value);
    }
    let line = |name, mean: &Mean| {
        let (value, error) = (100.0 * mean.value(), 100.0 * mean.error());
        format!("{name:<9} {value:.2} ± {error:.2} %\n")
    };
    let shown = format!(
        "{}{}{} questions\n",
        line("acc", &plain),
        line("acc_norm", &normed),
        plain.count()
    );
    args.output.print(&shown, values, &from)
}

/// Returns -ln(probability) of each answer.
fn answer(
    session: &mut Session,
    tokenizer: &Tokenizer,
    begin: Option<u32>,
    question: &Question,
) -> Result<Vec<f64>> {
    let begin = || begin.into_iter();
    let prompt = question.prompt.trim_end();
    let of_prompt: Vec<u32> = begin().chain(tokenizer.encode(prompt)?).collect();
    let mut read: Option<Vec<u32>> = None;
    let mut all = Vec::with_capacity(question.answers.len());
    for answer in &question.answers {
        // A token may reach from the prompt into the answer, so both are encoded together.
        let text = tokenizer.encode(&format!("{prompt} {answer}"))?;
        let tokens: Vec<u32> = begin().chain(text).collect();
        let first = of_prompt.len().min(tokens.len() - 1).max(1);
        let before = &tokens[..first - 1];
        if read.as_deref() == Some(before) {
            session.rewind(before.len() as u64)?;
        } else {
            session.reset()?;
            session.feed(before)?;
            session.mark()?;
            read = Some(before.to_vec());
        }
        let mut nats = 0.0;
        session.feed_each(&tokens[first - 1..tokens.len() - 1], |row, logits| {
            nats += surprise(logits, tokens[first + row]) * std::f64::consts::LN_2;
        })?;
        all.push(nats);
    }
    Ok(all)
}

/// The index of the smallest value; the first of equal values.
fn least(values: impl Iterator<Item = f64>) -> usize {
    let found = values.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
    found.map_or(0, |(place, _)| place)
}

fn read(path: &Path, limit: usize) -> Result<Vec<Question>> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let questions = lines.map(|(index, line)| {
        question(line).map_err(|reason| Error::input(path, format!("line {}: {reason}", index + 1)))
    });
    let questions: Vec<Question> = questions.take(limit).collect::<Result<_>>()?;
    if questions.is_empty() {
        return Err(Error::input(path, "no questions in it"));
    }
    Ok(questions)
}

/// Parses a question.
fn question(line: &str) -> Result<Question, String> {
    const EXPECTED: &str = "expected \"question\", \"choices\" and \"answerKey\" (ARC), or \"ctx\", \"endings\" and \"label\" (HellaSwag)";
    let line: Line = serde_json::from_str(line).map_err(|e| {
        if e.is_data() {
            EXPECTED.to_string()
        } else {
            e.to_string()
        }
    })?;
    let question = match line {
        Line::Arc {
            question,
            choices,
            answer,
        } => {
            let right = choices.label.iter().position(|label| *label == answer);
            Question {
                prompt: format!("Question: {question}\nAnswer:"),
                answers: choices.text,
                right: right.ok_or(format!("\"answerKey\": no choice is labelled {answer:?}"))?,
            }
        }
        Line::HellaSwag {
            activity_label,
            ctx_a,
            ctx_b,
            ctx,
            endings,
            label,
        } => {
            let context = match (ctx_a, ctx_b, ctx) {
                (Some(first), Some(second), _) => format!("{first} {}", capitalized(&second)),
                (_, _, Some(whole)) => whole,
                _ => return Err(EXPECTED.into()),
            };
            let label = match &label {
                Value::String(label) => label.parse().ok(),
                number => number.as_u64().map(|label| label as usize),
            };
            Question {
                prompt: cleaned(&format!("{activity_label}: {context}")),
                answers: endings.iter().map(|ending| cleaned(ending)).collect(),
                right: label.ok_or("\"label\": expected a number")?,
            }
        }
    };
    let answers = question.answers.len();
    if question.right >= answers || question.answers.iter().any(String::is_empty) {
        return Err(format!(
            "the right one of {answers} answers is missing, or one is empty"
        ));
    }
    Ok(question)
}

/// Makes the first letter a capital and all others lower case.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.flat_map(char::to_lowercase)).collect()
}

/// Removes WikiHow's marks from HellaSwag's texts.
fn cleaned(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('[') {
        let Some((_, after)) = after.split_once(']') else {
            break;
        };
        clean += before;
        rest = after;
    }
    clean += rest;
    clean.replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_become_the_prompts_of_the_harness() {
        let arc = r#"{"id":"a","question":"What is wet?","choices":{"text":["fire","water"],"label":["A","B"]},"answerKey":"B"}"#;
        let found = question(arc).unwrap();
        assert_eq!(found.prompt, "Question: What is wet?\nAnswer:");
        assert_eq!((found.right, found.answers[1].as_str()), (1, "water"));
        let hella = r#"{"ind":4,"activity_label":"Rowing","ctx_a":"A man [step] rows.","ctx_b":"he Then","ctx":"x","endings":["a [b] c","d"],"label":"0"}"#;
        let found = question(hella).unwrap();
        assert_eq!(found.prompt, "Rowing: A man rows. He then");
        assert_eq!((found.right, found.answers[0].as_str()), (0, "a c"));
    }

    #[test]
    fn a_line_that_is_no_question_says_why() {
        for (line, reason) in [
            ("[", "EOF"),
            ("{}", "answerKey"),
            (
                r#"{"question":"q","choices":{"text":["a"],"label":["A"]},"answerKey":"C"}"#,
                "labelled \"C\"",
            ),
            (r#"{"ctx":"c","endings":["a"],"label":1}"#, "missing"),
            (r#"{"endings":["a"],"label":0}"#, "HellaSwag"),
        ] {
            let error = question(line).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
