//! A conversation on the screen, with the session that reads it.

use std::sync::Arc;
use std::time::Instant;

use waterline::{
    Answer, AnswerParser, AnswerSyntax, Chat, Constraint, ContextEnd, Finish, GenerateOptions,
    HistoryRead, Message, Role, SamplerParams, Session, Snapshot, Start, StateFile, ToolCall,
    Tools,
};

use super::screen::Screen;
use super::tools::{Tool, run, schemas};
use crate::error::{Error, Result};
use crate::grammar::GrammarArgs;
use crate::prompt::rendered;
use crate::session::{LimitArgs, ReadingBar};

/// Limit on consecutive answers that call tools.
const MOST_ROUNDS: usize = 16;

/// A conversation with a model.
pub struct Conversation {
    session: Session,
    chat: Chat,
    limits: GenerateOptions,
    /// The grammar of the answers.
    form: Option<Constraint>,
    /// How the model writes its answers.
    syntax: AnswerSyntax,
    tools: Vec<Tool>,
    totals: Totals,
    /// The most tokens that the session can read, if its state has such a limit.
    context: Option<usize>,
}

/// Totals over all turns.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Tokens read from messages.
    pub read: usize,
    /// Seconds that reading took.
    pub read_seconds: f64,
    /// Tokens generated for answers.
    pub generated: usize,
    /// Seconds that generating took.
    pub generate_seconds: f64,
}

/// Statistics of one answer.
pub struct Reply {
    /// Generated tokens.
    pub tokens: usize,
    /// Seconds of generation.
    pub seconds: f64,
    /// Tokens of the conversation before the answer, reused and read.
    pub read: HistoryRead,
    /// Seconds from the message to the first token.
    pub first: f64,
    /// Whether Ctrl-C stopped the answer.
    pub stopped: bool,
    /// The tools that it calls.
    calls: Vec<ToolCall>,
}

impl Reply {
    /// Generated tokens per second of generation.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(1e-9)
    }
}

impl Conversation {
    /// Starts an empty conversation. Fails if the model has no tokenizer or no usable chat template.
    pub fn new(session: Session, limits: &LimitArgs) -> Result<Self> {
        let chat = Chat::new(&session)?;
        let context = context(&session)?;
        Ok(Conversation {
            context,
            syntax: syntax(&session, Tools::default())?,
            session,
            limits: limits.options(chat.end_token(), Some(chat.thought()?)),
            chat,
            form: None,
            tools: Vec::new(),
            totals: Totals::default(),
        })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The messages.
    pub fn messages(&self) -> &[Message] {
        self.chat.messages()
    }

    /// The user's first message.
    pub fn first_message(&self) -> Option<&str> {
        let mut said = self.messages().iter().filter(|m| m.role == Role::User);
        said.next().map(|message| message.content.as_str())
    }

    /// The user's last message.
    pub fn last_message(&self) -> Option<&str> {
        let mut said = self.messages().iter().rev();
        let message = said.find(|message| message.role == Role::User)?;
        Some(&message.content)
    }

    /// The last answer without its thoughts; with them if there is nothing else.
    pub fn last_answer(&self) -> Result<Option<String>> {
        let mut answers = self.messages().iter().rev();
        let Some(message) = answers.find(|message| message.role == Role::Assistant) else {
            return Ok(None);
        };
        let (mut parser, mut read) = (self.parser()?, Answer::default());
        let parts = parser.push(&message.content);
        let rest = parser.finish(false);
        parts.iter().chain(&rest).for_each(|part| read.add(part));
        let content = [&read.content, &message.content];
        let texts = content.map(|text| text.trim());
        Ok(texts
            .into_iter()
            .find(|text| !text.is_empty())
            .map(String::from))
    }

    /// The number of tokens of a text.
    pub fn count_tokens(&self, text: &str) -> Result<usize> {
        Ok(self.session.model().tokenizer()?.encode(text)?.len())
    }

    /// The tokens for which the context has room; `None` without a limit.
    pub fn room(&self) -> Option<usize> {
        let context = self.context.filter(|_| !self.forgets())?;
        Some(context.saturating_sub(self.session.position() as usize))
    }

    /// The instructions (system prompt) of the conversation.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages().first()?;
        (first.role == Role::System).then_some(&first.content)
    }

    /// The most tokens that the session can read, if its state has such a limit.
    pub fn context(&self) -> Option<usize> {
        self.context
    }

    /// Whether the oldest tokens are forgotten when the context is full.
    pub fn forgets(&self) -> bool {
        self.session.options().context_end != ContextEnd::Refuse
    }

    /// The text of the last `tokens` tokens, as far as the history reaches, including the template's text between messages.
    pub fn last_text(&self, tokens: usize) -> String {
        let (older, newer) = self.session.recent();
        let history: Vec<u32> = older.iter().chain(newer).copied().collect();
        self.text(&history[history.len().saturating_sub(tokens)..])
    }

    /// The text of the token at `position`, if the history reaches back that far.
    pub fn token_text(&self, position: u64) -> Option<String> {
        let (older, newer) = self.session.recent();
        let first = self.session.position() - (older.len() + newer.len()) as u64;
        let index = usize::try_from(position.checked_sub(first)?).ok()?;
        let token = older.iter().chain(newer).nth(index)?;
        Some(self.text(&[*token]))
    }

    fn text(&self, tokens: &[u32]) -> String {
        let tokenizer = self.session.model().tokenizer();
        tokenizer.map_or_else(|_| String::new(), |tokenizer| rendered(&tokenizer, tokens))
    }

    /// Totals over all turns so far, including undone turns.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The limits at which an answer ends.
    pub fn limits(&mut self) -> &mut GenerateOptions {
        &mut self.limits
    }

    /// Changes the sampling parameters.
    pub fn set_sampler(&mut self, params: SamplerParams) -> Result<()> {
        Ok(self.session.set_sampler(params)?)
    }

    /// Begins the conversation after the text of a state file.
    pub fn set_state(&mut self, state: Arc<StateFile>) -> Result<()> {
        self.session.offer_state(Arc::clone(&state))?;
        self.chat.set_before(state.tokens().to_vec());
        Ok(())
    }

    /// The template's text before the user's first message when there are no instructions.
    pub fn beginning(&self) -> Result<String> {
        Ok(self.chat.beginning()?)
    }

    /// Sets the instructions (system prompt), before the first message.
    pub fn set_system(&mut self, text: &str) -> Result<()> {
        Ok(self.chat.set_system(text)?)
    }

    /// Whether the template requests a thought before the answer.
    pub fn thinking(&self) -> Option<bool> {
        self.chat.thinking()
    }

    /// Sets a variable of the template.
    pub fn set_variable(&mut self, name: &str, value: serde_json::Value) -> Result<()> {
        Ok(self.chat.set_variable(name, value)?)
    }

    /// Sets whether the template requests a thought before the answer, if given. Fails if the template has no switch for thoughts.
    pub fn set_thinking(&mut self, thinking: Option<bool>) -> Result<()> {
        if thinking.is_none() {
            return Ok(());
        }
        if !self.chat.has_thinking_switch()? {
            return Err(Error::usage(
                "thinking: the model's chat template has no switch for it",
            ));
        }
        Ok(self.chat.set_thinking(thinking)?)
    }

    /// Sets the grammar of all answers.
    pub fn set_form(&mut self, form: &GrammarArgs) -> Result<()> {
        self.form = form.constraint(self.session.model())?;
        Ok(())
    }

    /// Sets the tools that the model may call.
    pub fn set_tools(&mut self, tools: &[Tool]) -> Result<()> {
        if tools.is_empty() {
            return Ok(());
        }
        let schemas = schemas(tools);
        self.syntax = syntax(&self.session, Tools(schemas.clone()))?;
        self.tools = tools.to_vec();
        let model = self.session.model();
        let tokenizer = model.tokenizer()?;
        let marks = self.syntax.marks().into_iter();
        let marks = marks.filter_map(|mark| tokenizer.token_id(mark));
        self.limits.shown_tokens.extend(marks);
        Ok(self.chat.set_tools(schemas)?)
    }

    /// The parser of the next answer.
    fn parser(&self) -> Result<AnswerParser> {
        let mut syntax = self.syntax.clone();
        if self.chat.opens_thought()? {
            syntax.start = Start::Thought;
        }
        Ok(AnswerParser::new(syntax))
    }

    /// Runs the tools that an answer calls and shows the next answer, until an answer calls no tool.
    fn run_tools(&mut self, mut reply: Reply, screen: &mut Screen) -> Result<Reply> {
        for _ in 0..MOST_ROUNDS {
            let mut messages = self.messages().to_vec();
            let runs = !self.tools.is_empty() && !reply.stopped;
            for call in reply.calls.iter().filter(|_| runs) {
                let role = Role::Other("tool".into());
                messages.push(Message::new(role, run(&self.tools, call, screen)?));
            }
            if messages.len() == self.messages().len() {
                break;
            }
            let (parser, clock) = (self.parser()?, Instant::now());
            let read = self.read(messages, clock)?;
            reply = Reply {
                read,
                ..self.answer(parser, screen, clock)?
            };
        }
        Ok(reply)
    }

    /// Sends a message and shows the answer. A message that cannot be read completely is not sent. After any other
    /// error, the partial answer stays in the conversation.
    pub fn say(&mut self, text: &str, screen: &mut Screen) -> Result<Reply> {
        // Done first because Ctrl-C may end it, and a sent message must be answered.
        let parser = self.parser()?;
        let clock = Instant::now();
        let bar = ReadingBar::new();
        let read = self
            .chat
            .send(&mut self.session, text, |read, of| bar.show(read, of))?;
        drop(bar);
        self.count_reading(read, clock);
        let reply = self.answer(parser, screen, clock)?;
        self.run_tools(Reply { read, ..reply }, screen)
    }

    /// Replaces the conversation with `messages`; `clock` was started before.
    fn read(&mut self, messages: Vec<Message>, clock: Instant) -> Result<HistoryRead> {
        let read = self
            .chat
            .set_messages(&mut self.session, messages, |_, _| ())?;
        self.count_reading(read, clock);
        Ok(read)
    }

    /// Adds tokens that were read since `clock` to the totals.
    fn count_reading(&mut self, read: HistoryRead, clock: Instant) {
        self.totals.read += read.read;
        self.totals.read_seconds += clock.elapsed().as_secs_f64();
    }

    /// Generates an answer to the message sent at `sent`.
    fn answer(
        &mut self,
        mut parser: AnswerParser,
        screen: &mut Screen,
        sent: Instant,
    ) -> Result<Reply> {
        let mut read = Answer::default();
        let clock = Instant::now();
        let mut first = None;
        let mut answer = String::new();
        let mut limits = self.limits.clone();
        if let Some(thought) = &mut limits.thought {
            thought.is_open = parser.is_thinking();
        }
        let mut pieces = self.session.generate(limits)?;
        if let Some(form) = self.form.clone() {
            pieces = pieces.constrained(form);
        }
        let mut outcome = Ok(());
        for piece in pieces.by_ref() {
            first.get_or_insert_with(|| sent.elapsed().as_secs_f64());
            outcome = piece.map_err(Error::from).and_then(|piece| {
                answer.push_str(&piece.text);
                // The tags of a thought are part of it.
                let was_thought = parser.is_thinking();
                parser
                    .push(&piece.text)
                    .iter()
                    .for_each(|part| read.add(part));
                screen.answer(&piece.text, was_thought || parser.is_thinking())
            });
            if outcome.is_err() {
                break;
            }
        }
        let (tokens, finish) = (pieces.tokens(), pieces.finish());
        let seconds = clock.elapsed().as_secs_f64();
        self.totals.generated += tokens;
        self.totals.generate_seconds += seconds;
        self.chat.answered(&mut self.session, &answer)?;
        let is_cut = finish != Some(Finish::End);
        parser.finish(is_cut).iter().for_each(|part| read.add(part));
        outcome
            .and_then(|()| screen.end_answer(answer.is_empty()))
            .or_else(|error| {
                screen.end_answer(false)?;
                Err(error)
            })?;
        Ok(Reply {
            tokens,
            seconds,
            read: HistoryRead::default(),
            first: first.unwrap_or_default(),
            stopped: finish == Some(Finish::Cancelled),
            calls: read.calls,
        })
    }

    /// Removes the last message and its answer; returns the message, if there was one.
    pub fn undo(&mut self) -> Result<Option<String>> {
        Ok(self.chat.undo(&mut self.session)?)
    }

    /// Removes the last answer and generates another one, to `text` if the message is another. The sampler's random numbers continue,
    /// so the answer can differ.
    pub fn say_again(&mut self, text: Option<String>, screen: &mut Screen) -> Result<Reply> {
        let asked = self
            .messages()
            .iter()
            .rposition(|message| message.role == Role::User);
        let Some(asked) = asked else {
            return Err(Error::usage("nothing has been said yet"));
        };
        let parser = self.parser()?;
        let clock = Instant::now();
        let mut messages = self.messages()[..=asked].to_vec();
        if let Some(text) = text {
            messages[asked] = Message::new(Role::User, text);
        }
        let read = self.read(messages, clock)?;
        let reply = self.answer(parser, screen, clock)?;
        self.run_tools(Reply { read, ..reply }, screen)
    }

    /// Forgets everything but the instructions.
    pub fn clear(&mut self) -> Result<()> {
        Ok(self.chat.clear(&mut self.session)?)
    }

    /// A snapshot of the messages and the state.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(self.chat.snapshot(&self.session)?)
    }

    /// The messages and the sampling parameters, serialised.
    pub fn note(&self) -> Result<Vec<u8>> {
        Ok(self.chat.note(&self.session)?)
    }

    /// Continues a conversation from its messages alone; the session reads them with the next message.
    pub fn restore_note(&mut self, note: &[u8]) -> Result<()> {
        Ok(self.chat.restore_note(&mut self.session, note)?)
    }

    /// Takes over the messages of a conversation with another model. The sampling parameters stay.
    pub fn continue_from(&mut self, other: &Self) -> Result<()> {
        let params = self.session.sampler().clone();
        self.restore_note(&other.note()?)?;
        self.set_sampler(params)
    }

    /// Continues a conversation from a snapshot. On an error the present conversation is unchanged.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        Ok(self.chat.restore(&mut self.session, snapshot)?)
    }
}

/// The context of a session whose state grows with its context, `None` for a state of fixed size.
fn context(session: &Session) -> Result<Option<usize>> {
    let state = session.options().state;
    let mut larger = state;
    larger.context = state.context.saturating_add(4096);
    let model = session.model();
    // A plan that is too large to lay out also grows.
    let grows = match model.plan(&larger) {
        Ok(larger) => larger.bytes() != model.plan(&state)?.bytes(),
        Err(_) => true,
    };
    Ok(grows.then_some(state.context))
}

/// The syntax of a model's answers.
fn syntax(session: &Session, tools: Tools) -> Result<AnswerSyntax> {
    let model = session.model();
    let (template, tokenizer) = (model.chat_template_or_chatml()?, model.tokenizer()?);
    let is_token = |text: &str| tokenizer.token_id(text).is_some();
    Ok(AnswerSyntax::of_model(template.source(), is_token, tools))
}
