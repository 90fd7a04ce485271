//! A prompt on the command line: the model, the text, its tokens, and the text that the model sees.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waterline::{Model, ThoughtOptions, Tokenizer, Turns};

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::template_args::TemplateArgs;
use crate::text::{NO_TEMPLATE, STDIN, read_stdin, read_text};
use crate::wrong_model::{is_like_a_model, quoted};

/// The source of a prompt.
#[derive(clap::Args)]
pub struct PromptArgs {
    /// A GGUF file or a Hugging Face directory. Without it, the built-in model is used and the first word is TEXT.
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    /// The prompt; - reads it from standard input.
    #[arg(value_name = "TEXT", conflicts_with = "source")]
    text: Option<String>,
    /// The prompt.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        group = "source",
        allow_hyphen_values = true
    )]
    prompt: Option<String>,
    /// A file with the prompt; - reads it from standard input.
    #[arg(
        short,
        long,
        alias = "prompt-file",
        value_name = "FILE",
        group = "source"
    )]
    file: Option<PathBuf>,
}

/// Options for encoding a prompt as tokens.
#[derive(clap::Args)]
#[command(next_help_heading = "Prompt")]
pub struct EncodingArgs {
    /// Make the prompt a user's message with the model's chat template.
    #[arg(long)]
    chat: bool,
    /// Instructions (system prompt) before the message; implies --chat.
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,
    /// Do not put the BOS token before a text that is not a message.
    #[arg(long, conflicts_with_all = ["chat", "system"])]
    no_bos: bool,
    /// Recognize the names of control tokens in a text that is not a message.
    #[arg(long, conflicts_with_all = ["chat", "system"])]
    special: bool,
    #[command(flatten)]
    template: TemplateArgs,
}

/// The tokens of a prompt.
pub struct Prompt {
    pub tokens: Vec<u32>,
    /// A token that ends an answer, in addition to the model's own.
    pub end: Option<u32>,
    /// The thought with which an answer may begin.
    pub thought: Option<ThoughtOptions>,
}

impl PromptArgs {
    /// Returns the model that the user named and the prompt's text. `name` is the command, for errors.
    pub fn read(&self, name: &str, open: &OpenArgs) -> Result<(Option<&Path>, String)> {
        let from_text = |text: &str| match text {
            STDIN => read_stdin(),
            _ => Ok(text.to_string()),
        };
        let model = self.first.as_deref();
        if let Some(text) = &self.prompt {
            return Ok((model, text.clone()));
        }
        if let Some(path) = &self.file {
            return Ok((model, read_text(path)?));
        }
        match (model, &self.text) {
            (Some(word), Some(text)) if !is_like_a_model(word) && Path::new(text).exists() => {
                let [word, text] = [&*word.to_string_lossy(), text.as_str()].map(quoted);
                Err(Error::usage(format!(
                    "the model comes before the text: waterline {name} {text} {word}"
                )))
            }
            (model, Some(text)) => Ok((model, from_text(text)?)),
            (Some(word), None) if !is_like_a_model(word) => {
                Ok((None, from_text(&word.to_string_lossy())?))
            }
            (Some(path), None) => {
                // Report first that the path is not a model.
                open.checkpoint(Some(path))?;
                let path = quoted(&path.display().to_string());
                Err(Error::usage(format!(
                    "no prompt: waterline {name} {path} \"Once upon a time\", or -f FILE, or - for standard input; \
                     to talk: waterline chat {path}"
                )))
            }
            (None, None) => Err(Error::usage(format!(
                "no prompt: waterline {name} \"Once upon a time\", or -f FILE, or - for standard input; \
                 to talk: waterline chat"
            ))),
        }
    }
}

impl EncodingArgs {
    /// Whether the flags make the text a message.
    pub fn is_message(&self) -> bool {
        self.chat || self.system.is_some()
    }

    /// Whether the flags say how to read a text that is not a message.
    pub fn is_text(&self) -> bool {
        self.no_bos || self.special
    }

    /// Encodes a text as a message, or as it is.
    pub fn encode(&self, model: &Arc<Model>, text: &str, is_message: bool) -> Result<Prompt> {
        let tokenizer = model.tokenizer()?;
        if is_message {
            if !model.has_chat_template() {
                eprintln!("{NO_TEMPLATE}");
            }
            let mut turns = Turns::new(Arc::new(model.chat_template_or_chatml()?), tokenizer)?;
            let mut options = turns.options().clone();
            for (name, value) in self.template.variables()? {
                options.set(name, value)?;
            }
            turns.set_options(options)?;
            turns.system(self.system.as_deref().unwrap_or_default())?;
            return Ok(Prompt {
                tokens: turns.user(text)?,
                end: turns.end_token(),
                thought: Some(ThoughtOptions::of_turns(&turns)?),
            });
        }
        let tokens = if self.special {
            tokenizer.encode_with_special(text)?
        } else {
            tokenizer.encode(text)?
        };
        // A text with special tokens may already begin with the BOS token.
        let bos = model.bos().filter(|_| !self.no_bos);
        let bos = bos.filter(|bos| !self.special || tokens.first() != Some(bos));
        let tokens: Vec<u32> = bos.into_iter().chain(tokens).collect();
        if tokens.is_empty() {
            Err(Error::usage("the prompt is empty"))
        } else {
            Ok(Prompt {
                tokens,
                end: None,
                thought: None,
            })
        }
    }
}

/// Decodes tokens to text, with the names of control tokens.
pub fn rendered(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes = tokens.iter().map(|&token| tokenizer.token_bytes(token));
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>().concat()).into_owned()
}
