use std::ops::Range;
use std::sync::Arc;

use super::jinja::marked::{Mark, Marked};
use super::template::Rendering;
use super::told::Told;
use super::{
    AnswerSyntax, CallFormat, ChatTemplate, Message, Piece, Role, TemplateOptions, ThoughtTags,
    Tokenizer, Tools,
};
use crate::cancel::Canceller;
use crate::error::{Error, Result};

/// A conversation as the tokens that each turn adds.
///
/// A recurrent state cannot be edited in the middle, so the history is never fed again, and generated tokens stay as they are. A turn
/// feeds the part of the rendering after the model's last answer: the end of that answer, the user's message, the beginning of the next
/// answer.
///
/// The rendering knows which of its bytes came from which message, and is cut after the last answer's. So a template may render older
/// messages differently from newer ones (some drop a model's reasoning). Text of messages, tools and variables is encoded as ordinary
/// text, even the name of a control token.
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
    /// [`Error::Template`] if the template fails or omits a message.
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
        turns.end = turns.closing()?;
        if turns.user("question").is_err() {
            // Some templates end a conversation with a token that they omit once a message follows.
            turns.end.clear();
            turns.user("question")?;
        }
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

    pub(super) fn render<'m>(
        &self,
        messages: &'m [Message],
        add_generation_prompt: bool,
    ) -> Result<Rendering<'m>> {
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
            Ok(Rendering { text, .. }) => {
                let text = text.as_str();
                Ok(text.contains("answer") && !text.contains("thought"))
            }
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
        Ok(self.thought_tags().are_open(rendered.text.as_str()))
    }

    /// The texts around thoughts in the template, or those of most models.
    pub fn thought_tags(&self) -> ThoughtTags {
        ThoughtTags::of_template(self.template.source()).unwrap_or(ThoughtTags::THINK)
    }

    /// How the model writes the answer to a question.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails.
    pub fn answer_syntax(&self) -> Result<AnswerSyntax> {
        let is_token = |text: &str| self.tokenizer.token_id(text).is_some();
        let tools = Tools(self.options.tools.clone());
        let mut syntax = AnswerSyntax::of_model(self.template.source(), is_token, tools);
        let question = [Message::new(Role::User, "question")];
        syntax.start = syntax.start_after(self.render(&question, true)?.text.as_str());
        Ok(syntax)
    }

    /// The format in which the model is to call tools.
    fn call_format(&self) -> &'static CallFormat {
        let is_token = |text: &str| self.tokenizer.token_id(text).is_some();
        CallFormat::for_tools(self.template.source(), is_token)
    }

    /// Whether the template lists tools, and so knows calls and their results.
    pub fn lists_tools(&self) -> bool {
        Tools::are_listed(self.template.source())
    }

    /// The messages as the template gets them.
    pub(super) fn told<'m>(&self, messages: &'m [Message]) -> Told<'m> {
        Told::new(&self.template, messages, &self.options, self.call_format())
    }

    /// Checks that the model is told of its tools.
    ///
    /// # Errors
    /// [`Error::Template`] if the template neither lists tools nor writes the messages that would.
    pub fn check_tools(&self) -> Result<()> {
        let question = [Message::new(Role::User, "question")];
        let told = self.told(&question);
        told.check(&self.render(&told.messages, true)?)
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
            let rendering = self
                .template
                .render_with(&question, true, &options, &self.canceller);
            Ok::<String, Error>(rendering?.text.as_str().into())
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
        let text = self.render(&question, true)?.text;
        let place = text.range_of(Mark::Content(0));
        let end = place.map_or(text.as_str().len(), |place| place.start);
        Ok(text.as_str()[..end].into())
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
        let text = self.render(messages, false)?.text;
        self.encode(&text, 0..text.as_str().len())
    }

    /// The added token that ends an answer in the template; generation should stop there.
    pub fn end_token(&self) -> Option<u32> {
        self.end.last().copied()
    }

    /// Encodes the rendering after the last answer, or all of it if there is no answer yet.
    fn tokens_after_answer(&self, add_generation_prompt: bool) -> Result<Vec<u32>> {
        let is_answer = |message: &Message| message.role == Role::Assistant;
        let rendering = self.render(&self.messages, add_generation_prompt)?;
        // The system message may have become a part of another one.
        let answer = rendering.messages.iter().rposition(is_answer);
        let last = rendering.messages.len() - 1;
        let (mut text, mut start) = (rendering.text, 0);
        if let Some(answer) = answer {
            if text.range_of(Mark::Content(answer)).is_none() {
                // The place of an empty answer is that of a word.
                let mut probe = rendering.messages.to_vec();
                probe[answer].content = "answer".into();
                text = self.render(&probe, add_generation_prompt)?.text;
            }
            let place = text.range_of(Mark::Content(answer));
            start = place
                .ok_or_else(|| template_error("it leaves out an answer"))?
                .end;
        }
        let place = text.range_of(Mark::Content(last));
        if answer != Some(last) && place.is_none_or(|place| place.end < start) {
            return Err(template_error("it leaves out the user's message"));
        }
        self.encode(&text, start..text.as_str().len())
    }

    /// The tokens after an answer up to the first added token. Some templates write an answer only if another message follows.
    fn closing(&self) -> Result<Vec<u32>> {
        let turn = [
            Message::new(Role::User, "question"),
            Message::new(Role::Assistant, "answer"),
        ];
        let followed = [&turn[..], &turn[..1]].concat();
        for messages in [&turn[..], &followed] {
            let text = self.render(messages, false)?.text;
            if let Some(place) = text.range_of(Mark::Content(1)) {
                let mut tokens = self.encode(&text, place.end..text.as_str().len())?;
                let closing = tokens
                    .iter()
                    .position(|&token| self.tokenizer.is_mark(token));
                tokens.truncate(closing.map_or(0, |closing| closing + 1));
                return Ok(tokens);
            }
        }
        Err(template_error("it leaves out an answer"))
    }

    fn encode(&self, text: &Marked, range: Range<usize>) -> Result<Vec<u32>> {
        let at_start = range.start == 0;
        self.tokenizer.encode_pieces(&pieces(text, range), at_start)
    }
}

/// The template's own text and that of messages, tools and variables in a range of a rendering.
pub(super) fn pieces(text: &Marked, range: Range<usize>) -> Vec<Piece<'_>> {
    let piece = |(text, mark)| match mark {
        Mark::Template => Piece::Template(text),
        _ => Piece::Content(text),
    };
    text.stretches(range).map(piece).collect()
}

/// The error for a template that cannot be used.
pub(super) fn template_error(reason: &str) -> Error {
    Error::Template {
        reason: reason.into(),
    }
}

fn invalid(reason: &str, what: &str) -> Error {
    Error::Invalid {
        what: what.into(),
        reason: reason.into(),
    }
}
