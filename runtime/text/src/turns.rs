use super::placeholders::{parts, placeholders, template_error};
use super::{ChatTemplate, Message, Piece, Role, TemplateOptions, ThoughtTags, Tokenizer};
use crate::cancel::Canceller;
use crate::error::{Error, Result};
use std::sync::Arc;

/// A conversation as the tokens that each turn adds.
///
/// A recurrent state cannot be edited in the middle, so the history is never fed again, and generated tokens stay as they are. A turn
/// feeds the part of the rendering after the model's last answer: the end of that answer, the user's message, the beginning of the next
/// answer.
///
/// To find that part, the template is rendered with a placeholder in place of each content, and the rendering is cut at the last
/// answer's placeholder. So a template may render older messages differently from newer ones (some drop a model's reasoning), and
/// contents never pass through the template: if a user types the name of a control token, it is encoded as ordinary text.
///
/// The end-of-turn token (the added token with which the template closes an answer, if any) is the boundary: however an answer ends,
/// this token has been fed once the tokens of [`assistant_done`](Self::assistant_done) have been, and everything after it belongs to the
/// next turn. Saving the messages is therefore sufficient.
#[derive(Clone)]
pub struct Turns {
    template: Arc<ChatTemplate>,
    tokenizer: Arc<Tokenizer>,
    options: TemplateOptions,
    canceller: Canceller,
    /// The tokens that the template puts after an answer, up to its end-of-turn token; empty if no added token closes an answer.
    end: Vec<u32>,
    /// Whether the template drops the thought of an answer once another message follows.
    drops_thoughts: bool,
    messages: Vec<Message>,
}

/// The tags around a model's thoughts.
const THOUGHT: &str = "<think>";
const THOUGHT_END: &str = "</think>";

impl Turns {
    /// Creates an empty conversation. Renders two trial turns, so that a template that cannot work fails here and not in the middle of a
    /// conversation.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails, omits a message, or closes an answer differently when a message follows it.
    pub fn new(template: Arc<ChatTemplate>, tokenizer: Arc<Tokenizer>) -> Result<Self> {
        let (options, canceller) = (TemplateOptions::default(), Canceller::default());
        Self::with_options(template, tokenizer, options, canceller)
    }

    /// Like [`new`](Self::new), with tools, a thinking switch, and cancellation of renderings.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and [`Error::Cancelled`].
    #[doc(hidden)]
    pub fn with_options(
        template: Arc<ChatTemplate>,
        tokenizer: Arc<Tokenizer>,
        options: TemplateOptions,
        canceller: Canceller,
    ) -> Result<Self> {
        let mut turns = Self {
            template,
            tokenizer,
            options,
            canceller,
            end: Vec::new(),
            drops_thoughts: false,
            messages: Vec::new(),
        };
        turns.drops_thoughts = turns.rehearse_thought()?;
        turns.user("question")?;
        turns.messages.push(Message::new(Role::Assistant, "answer"));
        let mut end = turns.tokens_after_answer(false)?;
        let closes = |&token: &u32| turns.tokenizer.is_mark(token);
        let closing = end.iter().position(closes);
        end.truncate(closing.map_or(0, |position| position + 1));
        turns.end = end;
        turns.user("question")?;
        turns.clear();
        Ok(turns)
    }

    /// The template's variables other than the messages.
    #[doc(hidden)]
    pub fn options(&self) -> &TemplateOptions {
        &self.options
    }

    /// Changes the template's variables from the next turn on. On error nothing changes.
    ///
    /// # Errors
    /// [`Error::Template`] if the template cannot render with these variables.
    #[doc(hidden)]
    pub fn set_options(&mut self, options: TemplateOptions) -> Result<()> {
        let (template, tokenizer) = (Arc::clone(&self.template), Arc::clone(&self.tokenizer));
        let canceller = self.canceller.clone();
        let mut turns = Self::with_options(template, tokenizer, options, canceller)?;
        turns.messages = std::mem::take(&mut self.messages);
        *self = turns;
        Ok(())
    }

    /// Sets the handle that cancels renderings from now on, with [`Error::Cancelled`].
    #[doc(hidden)]
    pub fn set_canceller(&mut self, canceller: Canceller) {
        self.canceller = canceller;
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether the template drops the thought of an answer once another message follows.
    pub(super) fn drops_thoughts(&self) -> bool {
        self.drops_thoughts
    }

    pub(super) fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String> {
        let (options, canceller) = (&self.options, &self.canceller);
        self.template
            .render_with(messages, add_generation_prompt, options, canceller)
    }

    /// Tests whether the template drops the thought of an answer once another message follows.
    fn rehearse_thought(&self) -> Result<bool> {
        let answer = format!("{THOUGHT}thought{THOUGHT_END}\n\nanswer");
        let messages = [
            Message::new(Role::User, "question"),
            Message::new(Role::Assistant, answer),
            Message::new(Role::User, "question"),
        ];
        match self.render(&messages, true) {
            Ok(text) => Ok(text.contains("answer") && !text.contains("thought")),
            Err(error @ Error::Cancelled { .. }) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Whether the template opens a thought at the start of an answer, so that the model generates only the rest of it.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails.
    #[doc(hidden)]
    pub fn opens_thought(&self) -> Result<bool> {
        let question = [Message::new(Role::User, "question")];
        let rendered = self.render(&question, true)?;
        Ok(self.thought_tags().are_open(&rendered))
    }

    /// The texts around thoughts in the template, or those of most models.
    pub fn thought_tags(&self) -> ThoughtTags {
        ThoughtTags::of_template(self.template.source()).unwrap_or(ThoughtTags::THINK)
    }

    /// Whether the template renders a question differently with thinking on and off.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails.
    #[doc(hidden)]
    pub fn has_thinking_switch(&self) -> Result<bool> {
        let question = [Message::new(Role::User, "question")];
        let with = |thinking| {
            let options = TemplateOptions {
                thinking: Some(thinking),
                ..self.options.clone()
            };
            self.template
                .render_with(&question, true, &options, &self.canceller)
        };
        Ok(with(true)? != with(false)?)
    }

    /// The text that the template writes before the first user message of a conversation without a system message.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails.
    #[doc(hidden)]
    pub fn beginning(&self) -> Result<String> {
        let question = [Message::new(Role::User, "question")];
        let rendered = self.render(&placeholders(&question), true)?;
        let parts = parts(&rendered, &question)?;
        let before = parts.iter().take_while(|part| part.message.is_none());
        let text = before.filter_map(|part| match part.piece {
            Piece::Template(text) => Some(text),
            Piece::Content(_) => None,
        });
        Ok(text.collect())
    }

    /// Sets the system message, which is part of the first turn; an empty text removes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] after the first turn, [`Error::Template`] if the template has no system message. The old message then stays.
    #[doc(hidden)]
    pub fn system(&mut self, text: &str) -> Result<()> {
        if self
            .messages
            .iter()
            .any(|message| message.role != Role::System)
        {
            return Err(invalid(
                "it must come before the first message",
                "system message",
            ));
        }
        let before = std::mem::take(&mut self.messages);
        if text.is_empty() {
            return Ok(());
        }
        self.messages.push(Message::new(Role::System, text));
        if let Err(error) = self.user("question") {
            self.messages = before;
            return Err(error);
        }
        self.messages.pop();
        Ok(())
    }

    /// Adds the user's message and returns the tokens to feed before the model answers. On error the conversation is unchanged.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the last message has no answer yet, [`Error::Template`] if the template refuses the conversation,
    /// [`Error::Tokenizer`] if the text cannot be encoded.
    pub fn user(&mut self, text: &str) -> Result<Vec<u32>> {
        if self
            .messages
            .last()
            .is_some_and(|message| message.role == Role::User)
        {
            return Err(invalid(
                "the previous message has no answer yet",
                "user message",
            ));
        }
        self.messages.push(Message::new(Role::User, text));
        let tokens = self.tokens_after_answer(true).and_then(|tokens| {
            let answered = self
                .messages
                .iter()
                .any(|message| message.role == Role::Assistant);
            let end: &[u32] = if answered { &self.end } else { &[] };
            match tokens.strip_prefix(end) {
                Some(tokens) => Ok(tokens.to_vec()),
                None => Err(template_error(
                    "it closes an answer differently when another message follows",
                )),
            }
        });
        if tokens.is_err() {
            self.messages.pop();
        }
        tokens
    }

    /// Adds the model's answer and returns the tokens that close it, which must be fed before anything else. `ended` means that the
    /// model generated its end token and read it. If the answer was stopped earlier, by a limit or the user, the tokens include the
    /// end-of-turn token.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no message to answer.
    pub fn assistant_done(&mut self, text: &str, ended: bool) -> Result<Vec<u32>> {
        if self
            .messages
            .last()
            .is_none_or(|message| message.role != Role::User)
        {
            return Err(invalid("there is no message to answer", "answer"));
        }
        self.messages.push(Message::new(Role::Assistant, text));
        Ok(if ended { Vec::new() } else { self.end.clone() })
    }

    /// Removes the last user message and its answer, if any, and returns the message. The caller must return the session to its state
    /// before that turn.
    #[doc(hidden)]
    pub fn pop_turn(&mut self) -> Option<String> {
        let last = self
            .messages
            .iter()
            .rposition(|message| message.role == Role::User)?;
        let message = self.messages.drain(last..).next();
        message.map(|message| message.content)
    }

    /// Removes all messages, including the system message.
    #[doc(hidden)]
    pub fn clear(&mut self) {
        self.messages.clear();
    }

    /// The messages of the conversation, which are all that has to be saved.
    #[doc(hidden)]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Encodes a complete conversation in the form that the model was trained on; the roles may come in any order that the template
    /// accepts. Does not use or change the conversation in `self`.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the messages, [`Error::Tokenizer`] if a text cannot be encoded.
    pub fn transcript(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let rendered = self.render(&placeholders(messages), false)?;
        let parts = parts(&rendered, messages)?;
        let pieces: Vec<Piece> = parts.iter().map(|part| part.piece).collect();
        self.tokenizer.encode_pieces(&pieces, true)
    }

    /// The added token that ends an answer in the template; generation should stop there.
    pub fn end_token(&self) -> Option<u32> {
        self.end.last().copied()
    }

    /// Encodes the rendering after the last answer, or all of it if there is no answer yet.
    fn tokens_after_answer(&self, add_generation_prompt: bool) -> Result<Vec<u32>> {
        let placeholders = placeholders(&self.messages);
        let rendered = self.render(&placeholders, add_generation_prompt)?;
        let parts = parts(&rendered, &self.messages)?;
        let find = |message: usize| parts.iter().rposition(|part| part.message == Some(message));

        let answer = self
            .messages
            .iter()
            .rposition(|message| message.role == Role::Assistant);
        let start = match answer {
            Some(answer) => {
                1 + find(answer).ok_or_else(|| template_error("it leaves out an answer"))?
            }
            None => 0,
        };
        let last = self.messages.len() - 1;
        if answer != Some(last) && find(last).is_none_or(|part| part < start) {
            return Err(template_error("it leaves out the user's message"));
        }
        let pieces: Vec<Piece> = parts[start..].iter().map(|part| part.piece).collect();
        self.tokenizer.encode_pieces(&pieces, start == 0)
    }
}

fn invalid(reason: &str, what: &str) -> Error {
    Error::Invalid {
        what: what.into(),
        reason: reason.into(),
    }
}
