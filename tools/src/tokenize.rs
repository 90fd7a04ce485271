//! `waterline tokenize`: the tokens that a model reads from a text.

use std::io::Write;
use std::process::ExitCode;

use serde_json::json;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::prompt::{EncodingArgs, PromptArgs};
use crate::text::json_line;

/// Show the tokens of a text, an id and its piece on each line. They are the tokens that `run --raw` reads, or `run --chat` with --chat.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    open: OpenArgs,
    /// Print one JSON object with the ids and the pieces.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encoding: EncodingArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (model, text) = args.prompt.read("tokenize", &args.open)?;
    let model = args.open.model(model)?;
    let encoding = &args.encoding;
    let tokens = encoding
        .encode(&model, &text, encoding.is_message())?
        .tokens;
    let tokenizer = model.tokenizer()?;
    let piece = |token: &u32| tokenizer.token_bytes(*token);
    let text = if args.json {
        let pieces = tokens
            .iter()
            .map(|token| String::from_utf8_lossy(piece(token)));
        json_line(&json!({
            "tokens": tokens,
            "pieces": pieces.collect::<Vec<_>>(),
            "count": tokens.len(),
        }))
    } else {
        let lines = tokens
            .iter()
            .map(|token| format!("{token:>7}  {}\n", quoted(piece(token))));
        lines.collect()
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).map_err(Error::Stdout)?;
    Ok(ExitCode::SUCCESS)
}

/// Quotes bytes: valid text as in JSON, other bytes with hexadecimal escapes.
fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => json_line(&text).trim_end().to_string(),
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn pieces_are_in_quotes() {
        assert_eq!(quoted(b" a\n"), "\" a\\n\"");
        assert_eq!(quoted("\u{e9}\u{1b}".as_bytes()), "\"\u{e9}\\u001b\"");
        assert_eq!(quoted(b"\xe6\x97"), "\"\\xe6\\x97\"");
    }
}
