//! Evaluation of statements.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{For, Macro, Node, Statement, Target};
use super::text::Writer;
use super::value::{List, Loop, Value, as_list};
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// Control flow after a statement.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// State of a rendering.
pub struct Evaluator {
    pub work: Work,
    /// Variables by scope. The first scope holds the template's global variables.
    scopes: Vec<HashMap<Arc<str>, Value>>,
    /// Index of the first scope of the current macro.
    base: usize,
    loops: usize,
    pub namespaces: Vec<Vec<(Arc<str>, Value)>>,
    out: String,
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
            scopes: vec![HashMap::new()],
            base: 0,
            loops: 0,
            namespaces: Vec::new(),
            out: String::new(),
            most,
        }
    }

    /// Renders `statements` with these variables.
    pub fn render(
        &mut self,
        statements: &[Statement],
        context: Vec<(&str, Value)>,
    ) -> Outcome<String> {
        for (name, value) in context {
            self.scopes[0].insert(name.into(), value);
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
                let value = self.value(node)?;
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
            Statement::For(statement) => self.for_loop(statement)?,
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
                self.scopes.push(HashMap::new());
                for ((target, _), value) in variables.iter().zip(values) {
                    self.assign(target, value)?;
                }
                let flow = self.body(body)?;
                self.scopes.pop();
                return Ok(flow);
            }
            Statement::Macro(item) => {
                let value = Value::Macro(Arc::clone(item));
                self.set(&item.name, value)?;
            }
            Statement::Inline(body) => return self.body(body),
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn write(&mut self, text: &str) -> Outcome<()> {
        self.work.spend(text.len())?;
        self.out.push_str(text);
        self.check_length()
    }

    fn emit(&mut self, value: &Value) -> Outcome<()> {
        let mut writer = Writer {
            work: &mut self.work,
            text: std::mem::take(&mut self.out),
        };
        writer.value(value)?;
        self.out = writer.text;
        self.check_length()
    }

    fn check_length(&self) -> Outcome<()> {
        if self.out.len() > self.most {
            Err(Failure::new("it writes more output than allowed"))
        } else {
            Ok(())
        }
    }

    /// Renders the body in a new scope and returns the text.
    fn captured(&mut self, body: &[Statement]) -> Outcome<Value> {
        let before = std::mem::take(&mut self.out);
        self.scopes.push(HashMap::new());
        self.body(body)?;
        self.scopes.pop();
        let text = std::mem::replace(&mut self.out, before);
        self.work.spend(text.len())?;
        Ok(Value::str(&text))
    }

    fn filtered(&mut self, filter: Option<&Node>, text: Value) -> Outcome<Value> {
        match filter {
            Some(filter) => self.filter_chain(filter, text),
            None => Ok(text),
        }
    }

    fn for_loop(&mut self, statement: &For) -> Outcome<()> {
        let mut items = self.value(&statement.items)?.iterate(&mut self.work)?;
        if let Some(condition) = &statement.condition {
            let mut chosen = Vec::new();
            for item in &items.items {
                self.scopes.push(HashMap::new());
                self.work.spend(ELEMENT)?;
                self.assign(&statement.target, item.clone())?;
                if self.value(condition)?.is_true() {
                    chosen.push(item.clone());
                }
                self.scopes.pop();
            }
            items = as_list(chosen)?;
        }
        if items.items.is_empty() {
            self.scopes.push(HashMap::new());
            self.body(&statement.otherwise)?;
            self.scopes.pop();
            return Ok(());
        }
        self.loops += 1;
        for index in 0..items.items.len() {
            let flow = self.iteration(statement, &items, index)?;
            if flow == Flow::Break {
                break;
            }
        }
        self.loops -= 1;
        Ok(())
    }

    fn iteration(&mut self, statement: &For, items: &Rc<List>, index: usize) -> Outcome<Flow> {
        // The approximate size of a scope with two variables.
        self.work.spend(8 * ELEMENT)?;
        self.scopes.push(HashMap::new());
        self.assign(&statement.target, items.items[index].clone())?;
        let state = Loop {
            items: Rc::clone(items),
            index,
            depth: self.loops,
        };
        self.set(&"loop".into(), Value::Loop(Rc::new(state)))?;
        let flow = self.body(&statement.body)?;
        self.scopes.pop();
        Ok(flow)
    }

    /// Looks up a variable or a built-in function.
    pub fn lookup(&mut self, name: &str) -> Outcome<Value> {
        let scopes = self.scopes.len() - self.base;
        self.work.spend_each(scopes, 2)?;
        let inner = self.scopes[self.base..].iter().rev();
        let found = inner
            .chain(self.scopes.first())
            .find_map(|scope| scope.get(name));
        Ok(found.cloned().unwrap_or_else(|| function(name)))
    }

    fn set(&mut self, name: &Arc<str>, value: Value) -> Outcome<()> {
        self.work.spend(2 * ELEMENT)?;
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(Arc::clone(name), value);
        }
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
        positional: Vec<Value>,
        mut named: Vec<(Arc<str>, Value)>,
    ) -> Outcome<Value> {
        self.work.spend(8 * ELEMENT)?;
        if positional.len() > item.parameters.len() {
            return Err(Failure::new(format!(
                "too many arguments for {}",
                item.name
            )));
        }
        let base = std::mem::replace(&mut self.base, self.scopes.len());
        self.scopes.push(HashMap::new());
        let mut positional = positional.into_iter();
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
        if let Some((name, _)) = named.first() {
            return Err(Failure::new(format!(
                "{} has no argument named {name:?}",
                item.name
            )));
        }
        let text = self.captured(&item.body)?;
        self.scopes.pop();
        self.base = base;
        Ok(text)
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
