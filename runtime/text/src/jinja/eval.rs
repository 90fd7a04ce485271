//! Evaluation of statements.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Constant, Expr, For, Macro, Node, Statement, Target};
use super::expr::Values;
use super::marked::{Mark, Marked};
use super::text::Writer;
use super::value::{Frame, Loop, Value, as_list};
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// Control flow after a statement.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Variables of a block.
#[derive(Default)]
struct Scope {
    /// Index of the scope around it. A macro's scope is within that of its definition, wherever it is called.
    around: usize,
    variables: HashMap<Arc<str>, Value>,
}

/// State of a rendering.
pub struct Evaluator {
    pub work: Work,
    /// Variables by scope. The first scope holds the template's global variables.
    scopes: Vec<Scope>,
    /// Index of the innermost visible scope.
    innermost: usize,
    pub namespaces: Vec<Vec<(Arc<str>, Value)>>,
    out: Marked,
    /// Size limit of `out` in bytes.
    most: usize,
}

/// Largest number of namespaces.
const MAX_NAMESPACES: usize = 10_000;

impl Evaluator {
    /// Creates a rendering of at most `most` bytes.
    pub fn new(work: Work, most: usize) -> Self {
        Evaluator {
            work,
            scopes: vec![Scope::default()],
            innermost: 0,
            namespaces: Vec::new(),
            out: Marked::default(),
            most,
        }
    }

    /// Renders `statements` with these variables.
    pub fn render(
        &mut self,
        statements: &[Statement],
        context: Vec<(String, Value)>,
    ) -> Outcome<Marked> {
        for (name, value) in context {
            self.scopes[0].variables.insert(name.into(), value);
        }
        self.body(statements)?;
        Ok(std::mem::take(&mut self.out))
    }

    fn body(&mut self, statements: &[Statement]) -> Outcome<Flow> {
        self.work.enter()?;
        for statement in statements {
            let flow = self.statement(statement)?;
            if flow != Flow::Next {
                self.work.leave();
                return Ok(flow);
            }
        }
        self.work.leave();
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &Statement) -> Outcome<Flow> {
        self.work.spend(super::work::NODE)?;
        match statement {
            Statement::Text(text) => self.write(text)?,
            Statement::Emit(node) => {
                let value = match self.value(node)? {
                    Value::None if names_content(&node.expr) => Value::Undefined,
                    value => value,
                };
                self.emit(&value)?;
            }
            Statement::If(branches) => {
                for (condition, body) in branches {
                    let applies = match condition {
                        Some(condition) => self.value(condition)?.is_true(),
                        None => true,
                    };
                    if applies {
                        return self.body(body);
                    }
                }
            }
            Statement::For(statement) => {
                let items = self.value(&statement.items)?;
                self.for_loop(statement, items, 0)?;
            }
            Statement::Set(target, node) => {
                let value = self.value(node)?;
                self.assign(target, value)?;
            }
            Statement::SetBlock(target, filter, body) => {
                let text = self.captured(body)?;
                let value = self.filtered(filter.as_ref(), text)?;
                self.assign(target, value)?;
            }
            Statement::FilterBlock(filter, body) => {
                let text = self.captured(body)?;
                let value = self.filtered(Some(filter), text)?;
                self.emit(&value)?;
            }
            Statement::With(variables, body) => {
                let values = variables.iter().map(|(_, node)| self.value(node));
                let values = values.collect::<Outcome<Vec<Value>>>()?;
                self.open();
                for ((target, _), value) in variables.iter().zip(values) {
                    self.assign(target, value)?;
                }
                let flow = self.body(body)?;
                self.close();
                return Ok(flow);
            }
            Statement::Macro(item) => {
                let value = Value::Macro(Arc::clone(item), self.frame());
                self.set(&item.name, value)?;
            }
            Statement::CallBlock(node, body) => {
                let Expr::Call(callee, arguments) = &*node.expr else {
                    return Err(Failure::at(node.line, "expected a call"));
                };
                let caller = Value::Macro(Arc::clone(body), self.frame());
                let value = self.call(callee, arguments, Some(caller));
                self.emit(&value.map_err(|failure| failure.or_line(node.line))?)?;
            }
            Statement::Inline(body) => return self.body(body),
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn write(&mut self, text: &str) -> Outcome<()> {
        self.work.spend(text.len())?;
        self.out.push(text, Mark::Template);
        self.check_length()
    }

    fn emit(&mut self, value: &Value) -> Outcome<()> {
        let mut writer = Writer {
            work: &mut self.work,
            out: std::mem::take(&mut self.out),
        };
        writer.value(value)?;
        self.out = writer.out;
        self.check_length()
    }

    fn check_length(&self) -> Outcome<()> {
        if self.out.as_str().len() > self.most {
            Err(Failure::limit("it writes more output than allowed"))
        } else {
            Ok(())
        }
    }

    /// Renders the body in a new scope and returns the text.
    fn captured(&mut self, body: &[Statement]) -> Outcome<Value> {
        self.capture(|evaluator| {
            evaluator.open();
            evaluator.body(body)?;
            evaluator.close();
            Ok(())
        })
    }

    /// The text that `run` renders.
    fn capture(&mut self, run: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<Value> {
        let before = std::mem::take(&mut self.out);
        run(self)?;
        let text = std::mem::replace(&mut self.out, before).into_text();
        self.work.spend(text.size())?;
        Ok(Value::Str(text))
    }

    /// Opens a scope within the innermost visible one.
    fn open(&mut self) {
        self.scopes.push(Scope {
            around: self.innermost,
            variables: HashMap::new(),
        });
        self.innermost = self.scopes.len() - 1;
    }

    fn close(&mut self) {
        if let Some(scope) = self.scopes.pop() {
            self.innermost = scope.around;
        }
    }

    /// The scopes that are visible now.
    fn frame(&self) -> Frame {
        Frame(self.innermost)
    }

    /// Runs `run` with the scopes of `frame`. They still exist, unless a namespace outlived them.
    fn inside<T>(&mut self, frame: Frame, run: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        let visible = frame.0.min(self.scopes.len() - 1);
        let before = std::mem::replace(&mut self.innermost, visible);
        let result = run(self)?;
        self.innermost = before;
        Ok(result)
    }

    fn filtered(&mut self, filter: Option<&Node>, text: Value) -> Outcome<Value> {
        match filter {
            Some(filter) => self.filter_chain(filter, text),
            None => Ok(text),
        }
    }

    fn for_loop(&mut self, statement: &Arc<For>, items: Value, depth: usize) -> Outcome<()> {
        let mut items = items.iterate(&mut self.work)?;
        if let Some(condition) = &statement.condition {
            let mut chosen = Vec::new();
            for item in &items.items {
                self.open();
                self.work.spend(ELEMENT)?;
                self.assign(&statement.target, item.clone())?;
                if self.value(condition)?.is_true() {
                    chosen.push(item.clone());
                }
                self.close();
            }
            items = as_list(chosen)?;
        }
        if items.items.is_empty() {
            self.open();
            self.body(&statement.otherwise)?;
            self.close();
            return Ok(());
        }
        let again = statement
            .recursive
            .then(|| (Arc::clone(statement), self.frame()));
        for index in 0..items.items.len() {
            let state = Loop {
                items: Rc::clone(&items),
                index,
                depth,
                statement: again.clone(),
            };
            if self.iteration(statement, state)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Calls a recursive loop with other items.
    pub(crate) fn call_loop(&mut self, state: &Loop, arguments: &Values) -> Outcome<Value> {
        let Some((statement, frame)) = &state.statement else {
            return Err(Failure::new("only a recursive loop can be called"));
        };
        self.work.enter()?;
        let items = arguments.get(0, "iterable").cloned();
        let items = items.unwrap_or(Value::Undefined);
        let run = |evaluator: &mut Self| evaluator.for_loop(statement, items, state.depth + 1);
        let text = self.inside(*frame, |evaluator| evaluator.capture(run))?;
        self.work.leave();
        Ok(text)
    }

    fn iteration(&mut self, statement: &For, state: Loop) -> Outcome<Flow> {
        // The approximate size of a scope with two variables.
        self.work.spend(8 * ELEMENT)?;
        self.open();
        self.assign(&statement.target, state.items.items[state.index].clone())?;
        self.set(&"loop".into(), Value::Loop(Rc::new(state)))?;
        let flow = self.body(&statement.body)?;
        self.close();
        Ok(flow)
    }

    /// Looks up a variable or a built-in function.
    pub fn lookup(&mut self, name: &str) -> Outcome<Value> {
        let mut at = self.innermost;
        loop {
            self.work.spend(2)?;
            let scope = &self.scopes[at];
            if let Some(value) = scope.variables.get(name) {
                return Ok(value.clone());
            }
            if at == 0 {
                return Ok(function(name));
            }
            at = scope.around;
        }
    }

    fn set(&mut self, name: &Arc<str>, value: Value) -> Outcome<()> {
        self.work.spend(2 * ELEMENT)?;
        let scope = &mut self.scopes[self.innermost];
        scope.variables.insert(Arc::clone(name), value);
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Outcome<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Attribute(name, attribute) => {
                let Value::Namespace(index) = self.lookup(name)? else {
                    return Err(Failure::new(format!("{name:?} is not a namespace")));
                };
                self.work.spend(ELEMENT + self.namespaces[index].len())?;
                let variables = &mut self.namespaces[index];
                match variables.iter_mut().find(|(other, _)| other == attribute) {
                    Some((_, old)) => *old = value,
                    None => variables.push((Arc::clone(attribute), value)),
                }
                Ok(())
            }
            Target::Tuple(targets) => {
                let items = value.iterate(&mut self.work)?;
                if items.items.len() != targets.len() {
                    let (found, expected) = (items.items.len(), targets.len());
                    return Err(Failure::new(format!(
                        "cannot unpack {found} values into {expected} names"
                    )));
                }
                let mut pairs = targets.iter().zip(&items.items);
                pairs.try_for_each(|(target, item)| self.assign(target, item.clone()))
            }
        }
    }

    /// Creates a namespace with these variables.
    pub fn namespace(&mut self, variables: Vec<(Arc<str>, Value)>) -> Outcome<Value> {
        if self.namespaces.len() == MAX_NAMESPACES {
            return Err(Failure::new("it creates too many namespaces"));
        }
        self.work.spend_each(1 + variables.len(), ELEMENT)?;
        self.namespaces.push(variables);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    /// Calls a macro and returns its rendered body.
    pub(crate) fn call_macro(
        &mut self,
        item: &Macro,
        frame: Frame,
        arguments: Values,
    ) -> Outcome<Value> {
        self.work.spend(8 * ELEMENT)?;
        self.inside(frame, |evaluator| {
            evaluator.open();
            evaluator.parameters(item, arguments)?;
            let text = evaluator.captured(&item.body)?;
            evaluator.close();
            Ok(text)
        })
    }

    /// Sets the parameters of a macro.
    fn parameters(&mut self, item: &Macro, arguments: Values) -> Outcome<()> {
        let mut named = arguments.named;
        let mut positional = arguments.positional.into_iter();
        for (name, default) in &item.parameters {
            let at = named.iter().position(|(other, _)| other == name);
            let value = match (positional.next(), at, default) {
                (Some(value), _, _) => value,
                (None, Some(at), _) => named.remove(at).1,
                (None, None, Some(default)) => self.value(default)?,
                (None, None, None) => Value::Undefined,
            };
            self.set(name, value)?;
        }
        if let Some(at) = named.iter().position(|(name, _)| &**name == "caller") {
            let caller = named.remove(at).1;
            self.set(&"caller".into(), caller)?;
        }
        let [takes_positional, takes_named] = item.catches;
        if takes_positional {
            self.set(
                &"varargs".into(),
                Value::sequence(positional.collect(), true)?,
            )?;
        } else if positional.next().is_some() {
            let reason = format!("too many arguments for {}", item.name);
            return Err(Failure::new(reason));
        }
        if takes_named {
            let entries = named.into_iter();
            let entries = entries.map(|(name, value)| (Value::str(&name), value));
            self.set(&"kwargs".into(), Value::dict(entries.collect())?)?;
        } else if let Some((name, _)) = named.first() {
            let reason = format!("{} has no argument named {name:?}", item.name);
            return Err(Failure::new(reason));
        }
        Ok(())
    }
}

/// Whether an expression is the content of a message. A content of null prints nothing, where Jinja2 prints "None".
fn names_content(expr: &Expr) -> bool {
    match expr {
        Expr::Attribute(_, name) => &**name == "content",
        Expr::Index(_, index) => {
            matches!(&*index.expr, Expr::Const(Constant::Str(name)) if &**name == "content")
        }
        _ => false,
    }
}

/// Looks up a built-in function.
fn function(name: &str) -> Value {
    const NAMES: [&str; 5] = [
        "range",
        "namespace",
        "dict",
        "raise_exception",
        "strftime_now",
    ];
    let found = NAMES.into_iter().find(|other| *other == name);
    found.map_or(Value::Undefined, Value::Function)
}
