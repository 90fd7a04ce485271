//! Bounds on what a request may cost, checked before anything of it is copied. Only long bodies, waiting prompts and the answers that are
//! generated take memory that grows with requests; each has its bound here.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::lanes::SHORT;
use super::prompt::Prompt;
use super::refusal::Refusal;
use super::request::Settings;

/// Maximum bytes of the stop texts of a request.
const MOST_STOP_BYTES: usize = 64 << 10;
/// Maximum bytes of prompts that an answer repeats, summed over the answers.
const MOST_ECHO_BYTES: usize = 16 << 20;
/// Maximum log-probabilities of a request: those of tokens and of their alternatives.
const MOST_LOGPROBS: usize = 1 << 18;
/// Grammars that are compiled at once, fewer than the threads that prepare short requests.
pub const MOST_GRAMMARS: usize = 2;
/// Maximum tokens of all prompts that wait in the queue.
pub const MOST_WAITING_TOKENS: usize = 1 << 24;

/// Permits for two bodies of the maximum size, one per KiB. A short body needs none.
pub fn bodies(most: usize) -> Arc<Semaphore> {
    let permits = (2 * (most.max(SHORT) >> 10)).min(Semaphore::MAX_PERMITS);
    Arc::new(Semaphore::new(permits))
}

/// The permits of a body with `most` bytes at most.
pub fn body_permits(bytes: usize, most: usize) -> u32 {
    u32::try_from(bytes.min(most) >> 10).unwrap_or(u32::MAX)
}

/// Checks the stop texts of a request.
pub fn check_stops(stops: &[String]) -> Result<(), Refusal> {
    let bytes: usize = stops.iter().map(String::len).sum();
    at_most("stop", bytes, MOST_STOP_BYTES, "bytes")
}

/// Checks the size of `n` answers to each of these prompts.
pub fn check_answers(
    prompts: &[Prompt],
    echoes: bool,
    settings: &Settings,
    token_bytes: impl Fn(u32) -> usize,
) -> Result<(), Refusal> {
    if echoes {
        let tokens = prompts.iter().flat_map(|prompt| prompt.tokens.iter());
        let bytes = tokens.fold(0, |sum: usize, &token| {
            sum.saturating_add(token_bytes(token))
        });
        let bytes = bytes.saturating_mul(settings.n);
        at_most("echo and n", bytes, MOST_ECHO_BYTES, "bytes of prompts")?;
    }
    let Some(top) = settings.logprobs else {
        return Ok(());
    };
    let scored = |prompt: &Prompt| match settings.echo {
        true => prompt.tokens.len(),
        false => 0,
    };
    let tokens = |prompt| settings.generate.max_tokens.saturating_add(scored(prompt));
    let tokens = prompts.iter().map(tokens).fold(0, usize::saturating_add);
    let found = tokens.saturating_mul(settings.n).saturating_mul(1 + top);
    let what = "logprobs, max_tokens and n";
    at_most(what, found, MOST_LOGPROBS, "log-probabilities")
}

fn at_most(what: &str, found: usize, most: usize, unit: &str) -> Result<(), Refusal> {
    if found > most {
        let reason = format!("{what}: found {found} {unit}, expected at most {most}");
        return Err(Refusal::bad(reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::connections::{MOST, MOST_OF_LOOPBACK, MOST_OF_PEER, WAITED};
    use crate::serve::fields::{MOST_ANSWERS, MOST_STOPS};
    use crate::serve::http::PATIENCE;
    use crate::serve::{Args, Limits};
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// A number of the documents, such as `16,777,216`.
    fn shown(number: usize) -> String {
        let digits = number.to_string();
        let mut shown = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                shown.push(',');
            }
            shown.push(digit);
        }
        shown
    }

    #[test]
    fn the_documents_have_the_limits() {
        let read = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/docs/");
            let page = std::fs::read_to_string(format!("{folder}{name}")).expect(name);
            page.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let args = Command::parse_from(["serve"]).args;
        let Limits {
            queue,
            body,
            messages,
            tokens,
            seconds,
            ..
        } = args.limits;
        let (messages, tokens) = (shown(messages), shown(tokens));
        let patience = PATIENCE.as_secs();
        assert_eq!(WAITED, 250, "a quarter of a second");
        let limits = format!(
            "`--max-body` ({} MiB), `--max-messages` ({messages}), `--max-tokens` ({tokens}), `--timeout` ({seconds} s)",
            body >> 20
        );
        let serve = [
            format!("`{}:{}` (`--host`, `--port`)", args.host, args.port),
            format!("`--parallel` sessions ({})", args.parallel),
            format!("`--queue` answers wait ({queue})"),
            format!("{limits}; {} connections, {patience} s for", shown(MOST)),
        ];
        let security = [
            format!(
                "`--queue` answers may wait ({queue}), and {} tokens of their prompts",
                shown(MOST_WAITING_TOKENS)
            ),
            format!("{limits}."),
            format!(
                "A request has at most {MOST_ANSWERS} answers, {MOST_STOPS} stop texts of {} KiB together, {} MiB of echoed prompts over \
                 all answers, {} log-probabilities",
                MOST_STOP_BYTES >> 10,
                MOST_ECHO_BYTES >> 20,
                shown(MOST_LOGPROBS)
            ),
            format!("Bodies over {} KiB are prepared", SHORT >> 10),
            format!(
                "{}, of which {MOST_OF_LOOPBACK} from one address of this machine (which may be a proxy) and {MOST_OF_PEER} from one address",
                shown(MOST)
            ),
            format!("A client has {patience} s for headers"),
        ];
        for (name, sentences) in [("serve.md", &serve[..]), ("security.md", &security[..])] {
            let page = read(name);
            for sentence in sentences {
                assert!(page.contains(sentence), "{name} lacks: {sentence}");
            }
        }
        assert_eq!(MOST_GRAMMARS, 2, "security.md: two at once");
    }
}
