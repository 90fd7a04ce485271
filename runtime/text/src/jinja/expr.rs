//! Evaluation of expressions.

use std::sync::Arc;

use super::ast::{Arguments, Comparison, Expr, Node, Operator};
use super::eval::Evaluator;
use super::marked::Text;
use super::text::Writer;
use super::value::Value;
use super::work::ELEMENT;
use super::{Failure, Outcome, filters, methods, operators, tests};

/// Evaluated arguments.
#[derive(Default)]
pub struct Values {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Values {
    /// The argument at `index` or with this name.
    pub fn get(&self, index: usize, name: &str) -> Option<&Value> {
        let named = || self.named.iter().find(|(other, _)| &**other == name);
        self.positional.get(index).or_else(|| Some(&named()?.1))
    }

    /// Like [`get`](Self::get), for strings.
    pub fn text(&self, index: usize, name: &str) -> Outcome<Option<&Text>> {
        match self.get(index, name) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Str(text)) => Ok(Some(text)),
            Some(other) => Err(Failure::new(format!(
                "{name} is {}, expected a string",
                other.kind()
            ))),
        }
    }

    /// Like [`get`](Self::get), for integers.
    pub fn int(&self, index: usize, name: &str) -> Outcome<Option<i64>> {
        match self.get(index, name) {
            None | Some(Value::None) => Ok(None),
            Some(other) => match other.as_int() {
                Some(value) => Ok(Some(value)),
                None => Err(Failure::new(format!(
                    "{name} is {}, expected an integer",
                    other.kind()
                ))),
            },
        }
    }

    /// Whether an argument is present and true.
    pub fn flag(&self, index: usize, name: &str) -> bool {
        self.get(index, name).is_some_and(Value::is_true)
    }
}

impl Evaluator {
    /// Evaluates an expression.
    pub fn value(&mut self, node: &Node) -> Outcome<Value> {
        self.work.enter()?;
        let value = self
            .compute(node)
            .map_err(|failure| failure.or_line(node.line))?;
        self.work.leave();
        Ok(value)
    }

    fn compute(&mut self, node: &Node) -> Outcome<Value> {
        match &*node.expr {
            Expr::Const(constant) => {
                let value = Value::from_constant(constant);
                self.work.spend(value.weight())?;
                Ok(value)
            }
            Expr::Name(name) => self.lookup(name),
            Expr::List(items, tuple) => {
                let items = self.values(items)?;
                Value::sequence(items, *tuple)
            }
            Expr::Dict(entries) => self.dict(entries),
            Expr::Attribute(object, name) => self.attribute(object, name),
            Expr::Index(object, index) => {
                let (object, index) = (self.value(object)?, self.value(index)?);
                self.index(&object, &index)
            }
            Expr::Slice(object, parts) => {
                let object = self.value(object)?;
                let mut bounds = [None; 3];
                for (bound, part) in bounds.iter_mut().zip(parts) {
                    let Some(part) = part else { continue };
                    *bound = match self.value(part)? {
                        Value::None => None,
                        value => Some(
                            value
                                .as_int()
                                .ok_or_else(|| Failure::new("slice indices must be integers"))?,
                        ),
                    };
                }
                operators::slice(&object, bounds, &mut self.work)
            }
            Expr::Call(callee, arguments) => self.call(callee, arguments, None),
            Expr::Filter(object, name, arguments) => {
                let object = match object {
                    Some(object) => self.value(object)?,
                    None => Value::Undefined,
                };
                let arguments = self.arguments(arguments)?;
                filters::apply(self, name, object, &arguments)
            }
            Expr::Test(object, name, arguments, negated) => {
                let object = self.value(object)?;
                let arguments = self.arguments(arguments)?;
                let holds = tests::holds(name, &object, &arguments.positional, &mut self.work)?;
                Ok(Value::Bool(holds != *negated))
            }
            Expr::Not(inner) => Ok(Value::Bool(!self.value(inner)?.is_true())),
            Expr::Negative(inner) => match self.value(inner)? {
                Value::Float(value) => Ok(Value::Float(-value)),
                other => {
                    operators::apply(Operator::Subtract, &Value::Int(0), &other, &mut self.work)
                }
            },
            Expr::Positive(inner) => self.value(inner),
            Expr::Binary(operator, a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                operators::apply(*operator, &a, &b, &mut self.work)
            }
            Expr::And(a, b) => match self.value(a)? {
                left if left.is_true() => self.value(b),
                left => Ok(left),
            },
            Expr::Or(a, b) => match self.value(a)? {
                left if left.is_true() => Ok(left),
                _ => self.value(b),
            },
            Expr::Compare(first, rest) => self.comparison(first, rest),
            Expr::If(condition, value, otherwise) => {
                if self.value(condition)?.is_true() {
                    self.value(value)
                } else {
                    otherwise
                        .as_ref()
                        .map_or(Ok(Value::Undefined), |node| self.value(node))
                }
            }
        }
    }

    fn values(&mut self, nodes: &[Node]) -> Outcome<Vec<Value>> {
        self.work.spend_each(nodes.len(), ELEMENT)?;
        nodes.iter().map(|node| self.value(node)).collect()
    }

    fn arguments(&mut self, arguments: &Arguments) -> Outcome<Values> {
        let mut positional = self.values(&arguments.positional)?;
        let mut named = Vec::new();
        for (name, node) in &arguments.named {
            named.push((Arc::clone(name), self.value(node)?));
        }
        let [list, mapping] = &arguments.unpacked;
        if let Some(node) = list {
            let list = self.value(node)?.iterate(&mut self.work)?;
            self.work.spend_each(list.items.len(), ELEMENT)?;
            positional.extend(list.items.iter().cloned());
        }
        if let Some(node) = mapping {
            let Value::Dict(dict) = self.value(node)? else {
                return Err(Failure::new("only a mapping can be unpacked with **"));
            };
            self.work.spend_each(dict.entries.len(), ELEMENT)?;
            for (key, value) in &dict.entries {
                named.push((key.as_str().unwrap_or_default().into(), value.clone()));
            }
        }
        Ok(Values { positional, named })
    }

    fn dict(&mut self, entries: &[(Node, Node)]) -> Outcome<Value> {
        let mut made: Vec<(Value, Value)> = Vec::new();
        for (key, value) in entries {
            let (key, value) = (self.value(key)?, self.value(value)?);
            self.insert(&mut made, key, value)?;
        }
        Value::dict(made)
    }

    /// Sets an entry of a mapping that is being built.
    pub fn insert(
        &mut self,
        entries: &mut Vec<(Value, Value)>,
        key: Value,
        value: Value,
    ) -> Outcome<()> {
        let is_list = matches!(&key, Value::List(list) if !list.tuple);
        if is_list || matches!(key, Value::Dict(_) | Value::Undefined) {
            return Err(Failure::new(format!("{} cannot be a key", key.kind())));
        }
        self.work.spend(2 * ELEMENT)?;
        for (other, old) in entries.iter_mut() {
            self.work.spend(4)?;
            if other.equals(&key, &mut self.work)? {
                *old = value;
                return Ok(());
            }
        }
        entries.push((key, value));
        Ok(())
    }

    fn comparison(&mut self, first: &Node, rest: &[(Comparison, Node)]) -> Outcome<Value> {
        let mut left = self.value(first)?;
        for (comparison, node) in rest {
            let right = self.value(node)?;
            let work = &mut self.work;
            let holds = match comparison {
                Comparison::Equal => left.equals(&right, work)?,
                Comparison::NotEqual => !left.equals(&right, work)?,
                Comparison::Less => left.order(&right, work)?.is_lt(),
                Comparison::LessEqual => left.order(&right, work)?.is_le(),
                Comparison::Greater => left.order(&right, work)?.is_gt(),
                Comparison::GreaterEqual => left.order(&right, work)?.is_ge(),
                Comparison::In => right.contains(&left, work)?,
                Comparison::NotIn => !right.contains(&left, work)?,
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn attribute(&mut self, node: &Node, name: &str) -> Outcome<Value> {
        let object = self.value(node)?;
        match &object {
            Value::Undefined => {
                let what = match &*node.expr {
                    Expr::Name(name) | Expr::Attribute(_, name) => format!("{name:?}"),
                    _ => "a value".into(),
                };
                Err(Failure::new(format!(
                    "{what} is undefined, so it has no attribute {name:?}"
                )))
            }
            // Like in Jinja2, `a.items` is the method, `a['items']` the element.
            other => match methods::find(other, name) {
                Some(method) => Ok(method),
                None => self.attribute_of(other, name),
            },
        }
    }

    /// An attribute of a defined value; undefined if it does not exist.
    pub(crate) fn attribute_of(&mut self, object: &Value, name: &str) -> Outcome<Value> {
        Ok(match object {
            Value::Dict(dict) => dict
                .get_str(name, &mut self.work)?
                .cloned()
                .unwrap_or(Value::Undefined),
            Value::Namespace(index) => {
                let variables = &self.namespaces[*index];
                self.work.spend(variables.len())?;
                let found = variables.iter().find(|(other, _)| &**other == name);
                found.map_or(Value::Undefined, |(_, value)| value.clone())
            }
            Value::Loop(state) => {
                let (items, index) = (&state.items.items, state.index);
                let int = |value: usize| Value::Int(value as i64);
                let item = |at: Option<usize>| at.and_then(|at| items.get(at)).cloned();
                match name {
                    "index" => int(index + 1),
                    "index0" => int(index),
                    "first" => Value::Bool(index == 0),
                    "last" => Value::Bool(index + 1 == items.len()),
                    "length" => int(items.len()),
                    "revindex" => int(items.len() - index),
                    "revindex0" => int(items.len() - index - 1),
                    "previtem" => item(index.checked_sub(1)).unwrap_or(Value::Undefined),
                    "nextitem" => item(Some(index + 1)).unwrap_or(Value::Undefined),
                    "depth" => int(state.depth + 1),
                    "depth0" => int(state.depth),
                    _ => Value::Undefined,
                }
            }
            Value::Macro(item, _) if name == "name" => Value::str(&item.name),
            _ => Value::Undefined,
        })
    }

    /// An element by index or key, or an attribute; undefined if it does not exist.
    pub fn index(&mut self, object: &Value, index: &Value) -> Outcome<Value> {
        let element = match (object, index) {
            (Value::Undefined, _) => {
                return Err(Failure::new("an undefined value has no elements"));
            }
            (Value::Dict(dict), _) => dict.get(index, &mut self.work)?.cloned(),
            (Value::List(list), _) => {
                let at = index.as_int();
                let at = at.and_then(|at| operators::position(at, list.items.len()));
                at.map(|at| list.items[at].clone())
            }
            (Value::Str(text), _) => {
                let length = object.length(&mut self.work)?;
                let at = index.as_int();
                let at = at.and_then(|at| operators::position(at, length));
                let character = at.and_then(|at| text.char_indices().nth(at));
                character.map(|(at, c)| Value::Str(text.slice(at..at + c.len_utf8())))
            }
            _ => None,
        };
        match (element, index) {
            (Some(element), _) => Ok(element),
            (None, Value::Str(name)) => match methods::find(object, name) {
                Some(method) => Ok(method),
                None => self.attribute_of(object, name),
            },
            _ => Ok(Value::Undefined),
        }
    }

    /// Calls a function. A `call` block gives its body as `caller`.
    pub(super) fn call(
        &mut self,
        callee: &Node,
        arguments: &Arguments,
        caller: Option<Value>,
    ) -> Outcome<Value> {
        let function = self.value(callee)?;
        let mut arguments = self.arguments(arguments)?;
        let caller = caller.map(|caller| ("caller".into(), caller));
        arguments.named.extend(caller);
        match function {
            Value::Macro(item, frame) => self.call_macro(&item, frame, arguments),
            Value::Function(name) => self.function(name, arguments),
            Value::Method(method) => methods::call(self, &method, &arguments),
            Value::Loop(state) => self.call_loop(&state, &arguments),
            other => {
                let what = match &*callee.expr {
                    Expr::Name(name) | Expr::Attribute(_, name) => format!("{name:?}"),
                    _ => other.kind().into(),
                };
                Err(Failure::new(format!(
                    "{what} is not a function or method in chat templates"
                )))
            }
        }
    }

    fn function(&mut self, name: &str, arguments: Values) -> Outcome<Value> {
        match name {
            "range" => operators::range(&arguments.positional, &mut self.work),
            "raise_exception" => {
                let mut writer = Writer::new(&mut self.work);
                arguments
                    .positional
                    .first()
                    .map_or(Ok(()), |value| writer.value(value))?;
                Err(Failure::new(writer.out.as_str()))
            }
            "strftime_now" => {
                let format = arguments.text(0, "format")?;
                let format = format.cloned().unwrap_or_else(|| Text::template(""));
                // A padded field such as %255d grows to 51 times its length.
                self.work.spend_each(format.len(), 64)?;
                let date = super::super::date::now(&format);
                let date = date.ok_or_else(|| {
                    Failure::new(
                        "this build cannot read the date; build it with the feature `tokenizer`",
                    )
                })?;
                Ok(Value::Str(Text::new(&date, format.origin())))
            }
            _ => {
                let mut entries = Vec::new();
                match arguments.positional.first() {
                    Some(Value::Dict(dict)) => {
                        for (key, value) in &dict.entries {
                            self.insert(&mut entries, key.clone(), value.clone())?;
                        }
                    }
                    Some(pairs) => {
                        for pair in &pairs.iterate(&mut self.work)?.items {
                            let pair = pair.iterate(&mut self.work)?;
                            let [key, value] = &pair.items[..] else {
                                return Err(Failure::new(format!("{name} needs pairs")));
                            };
                            self.insert(&mut entries, key.clone(), value.clone())?;
                        }
                    }
                    None => {}
                }
                for (key, value) in arguments.named {
                    self.insert(&mut entries, Value::str(&key), value)?;
                }
                if name == "dict" {
                    return Value::dict(entries);
                }
                let text = |value: &Value| value.as_str().unwrap_or_default().into();
                let variables = entries.into_iter().map(|(key, value)| (text(&key), value));
                self.namespace(variables.collect())
            }
        }
    }

    /// Applies the filters of a block to its rendering.
    pub(crate) fn filter_chain(&mut self, node: &Node, text: Value) -> Outcome<Value> {
        self.work.enter()?;
        let Expr::Filter(inner, name, arguments) = &*node.expr else {
            return Err(Failure::at(node.line, "expected a filter"));
        };
        let object = match inner {
            Some(inner) => self.filter_chain(inner, text)?,
            None => text,
        };
        let arguments = self.arguments(arguments)?;
        let value = filters::apply(self, name, object, &arguments);
        self.work.leave();
        value.map_err(|failure| failure.or_line(node.line))
    }
}
