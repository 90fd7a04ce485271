//! `waterline run --samples`: several completions of one prompt, generated in one batch.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use waterline::{Batch, GenerateOptions, Generation, Session};

use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::run::finish_name;
use crate::text::{json_line, shown};

/// Completions, in the order of their seeds.
pub struct Samples {
    all: Vec<Sample>,
    seconds: f64,
    /// The error that ended the unfinished completions.
    error: Option<Error>,
}

/// One completion.
struct Sample {
    session: Session,
    generation: Generation,
    text: String,
}

/// Completes the text that `session` has read `count` times.
pub fn complete(
    session: Session,
    count: usize,
    options: &GenerateOptions,
    interrupt: &Interrupt,
) -> Result<Samples> {
    let mut batch = Batch::new(&session, count)?;
    let forks = (1..count).map(|_| session.fork());
    let mut sessions = forks.collect::<waterline::Result<Vec<_>>>()?;
    sessions.insert(0, session);
    let params = sessions[0].sampler().clone();
    let sample = |(index, mut session): (usize, Session)| {
        let mut params = params.clone();
        params.seed = params.seed.wrapping_add(index as u64);
        session.set_sampler(params)?;
        Ok(Sample {
            generation: Generation::new(session.model(), options.clone())?,
            session,
            text: String::new(),
        })
    };
    let all = sessions.into_iter().enumerate().map(sample);
    let mut samples = Samples {
        all: all.collect::<Result<_>>()?,
        seconds: 0.0,
        error: None,
    };
    let start = Instant::now();
    samples.error = samples.generate(&mut batch, interrupt).err();
    samples.seconds = start.elapsed().as_secs_f64();
    Ok(samples)
}

impl Samples {
    /// Steps until all completions have ended.
    fn generate(&mut self, batch: &mut Batch, interrupt: &Interrupt) -> Result<()> {
        loop {
            let (mut sessions, mut rest) = (Vec::new(), Vec::new());
            for sample in &mut self.all {
                if sample.generation.finish().is_none() {
                    sessions.push(&mut sample.session);
                    rest.push((&mut sample.generation, &mut sample.text));
                }
            }
            if sessions.is_empty() {
                break;
            }
            interrupt.check()?;
            let tokens = batch.step(&mut sessions)?;
            for ((generation, text), &token) in rest.into_iter().zip(tokens) {
                text.push_str(&generation.push(token).text);
            }
        }
        Ok(())
    }

    /// Prints the completions, or one JSON object.
    pub fn print(self, as_json: bool) -> Result<ExitCode> {
        let seed = |sample: &Sample| sample.session.sampler().seed;
        let text = if as_json {
            let tokens: usize = self
                .all
                .iter()
                .map(|sample| sample.generation.tokens())
                .sum();
            let sample = |sample: &Sample| {
                json!({
                    "text": sample.text,
                    "tokens": sample.generation.tokens(),
                    "finish": finish_name(self.error.as_ref(), sample.generation.finish()),
                    "seed": seed(sample),
                })
            };
            let summary = json!({
                "samples": self.all.iter().map(sample).collect::<Vec<_>>(),
                "error": self.error.as_ref().map(Error::to_string),
                "decode_tokens_per_s": tokens as f64 / self.seconds.max(f64::MIN_POSITIVE),
            });
            json_line(&summary)
        } else {
            let sample = |s: &Sample| format!("--- seed {}\n{}\n", seed(s), shown(&s.text));
            self.all.iter().map(sample).collect()
        };
        std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(Error::Stdout)?;
        match self.error {
            Some(error) => Err(error),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}
