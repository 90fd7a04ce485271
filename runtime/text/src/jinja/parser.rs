//! Parses tokens into statements.

use std::sync::Arc;

use super::ast::{For, Macro, Node, Statement, Target};
use super::lexer::{Token, tokens};
use super::{Failure, Outcome};

/// Deepest nesting of statements and expressions.
const MAX_NESTING: u32 = 150;

/// Parses a template.
pub fn parse(source: &str) -> Outcome<Vec<Statement>> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        nesting: 0,
    };
    let statements = parser.body(&[])?;
    match parser.peek() {
        Token::End => Ok(statements),
        _ => parser.fail("an end tag has no matching start tag"),
    }
}

pub(super) struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    nesting: u32,
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    /// The token after the next one.
    pub(super) fn after_next(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].0
    }

    /// Returns the next token and advances past it; never advances past the end token.
    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    pub(super) fn fail<T>(&self, reason: impl Into<String>) -> Outcome<T> {
        Err(Failure::at(self.line(), reason))
    }

    pub(super) fn is_op(&self, operator: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == operator)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if found == name)
    }

    /// Advances past the next token if it is this operator. Returns whether it was.
    pub(super) fn skip_op(&mut self, operator: &str) -> bool {
        let found = self.is_op(operator);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect_op(&mut self, operator: &str) -> Outcome<()> {
        if self.skip_op(operator) {
            Ok(())
        } else {
            self.fail(format!("expected {operator:?}"))
        }
    }

    pub(super) fn name(&mut self) -> Outcome<Arc<str>> {
        match self.next() {
            Token::Name(name) => Ok(name.into()),
            _ => self.fail("expected a name"),
        }
    }

    /// Runs `inner` one level deeper.
    pub(super) fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.fail("it nests too deeply");
        }
        let result = inner(self);
        self.nesting -= 1;
        result
    }

    /// Parses statements up to one of the names in `ends`, which is not consumed, or up to the end.
    fn body(&mut self, ends: &[&str]) -> Outcome<Vec<Statement>> {
        self.nested(|parser| {
            let mut statements = Vec::new();
            loop {
                match parser.next() {
                    Token::Text(text) => statements.push(Statement::Text(text)),
                    Token::EmitBegin => {
                        let node = parser.tuple_or_expression()?;
                        statements.push(Statement::Emit(node));
                        if parser.next() != Token::EmitEnd {
                            return parser.fail("expected }}");
                        }
                    }
                    Token::StatementBegin => {
                        if ends.iter().any(|end| parser.is_name(end)) {
                            return Ok(statements);
                        }
                        statements.push(parser.statement()?);
                    }
                    Token::End if ends.is_empty() => return Ok(statements),
                    Token::End => {
                        return parser.fail(format!("expected {{% {} %}}", ends[ends.len() - 1]));
                    }
                    _ => return parser.fail("unexpected token"),
                }
            }
        })
    }

    fn end_statement(&mut self) -> Outcome<()> {
        match self.next() {
            Token::StatementEnd => Ok(()),
            _ => self.fail("expected %}"),
        }
    }

    /// Parses a body and the statement name that ends it.
    fn body_to(&mut self, end: &str) -> Outcome<Vec<Statement>> {
        self.end_statement()?;
        let body = self.body(&[end])?;
        self.next();
        Ok(body)
    }

    fn statement(&mut self) -> Outcome<Statement> {
        let line = self.line();
        let name = self.name()?;
        let statement = match &*name {
            "if" => return self.if_statement(),
            "for" => self.for_statement()?,
            "set" => return self.set(),
            "macro" => {
                let name = self.name()?;
                self.expect_op("(")?;
                let parameters = self.parameters()?;
                Statement::Macro(self.macro_body(name, parameters, "endmacro")?)
            }
            "call" => {
                let parameters = if self.skip_op("(") {
                    self.parameters()?
                } else {
                    Vec::new()
                };
                let call = self.expression()?;
                let body = self.macro_body("caller".into(), parameters, "endcall")?;
                Statement::CallBlock(call, body)
            }
            "break" => Statement::Break,
            "continue" => Statement::Continue,
            "generation" => Statement::Inline(self.body_to("endgeneration")?),
            "filter" => {
                let filter = self.filters(None)?;
                Statement::FilterBlock(filter, self.body_to("endfilter")?)
            }
            "with" => {
                let mut variables = Vec::new();
                while *self.peek() != Token::StatementEnd {
                    if !variables.is_empty() {
                        self.expect_op(",")?;
                    }
                    let target = self.target()?;
                    self.expect_op("=")?;
                    variables.push((target, self.expression()?));
                }
                Statement::With(variables, self.body_to("endwith")?)
            }
            other => {
                return Err(Failure::at(
                    line,
                    format!("the statement {other:?} is not known in chat templates"),
                ));
            }
        };
        self.end_statement()?;
        Ok(statement)
    }

    fn if_statement(&mut self) -> Outcome<Statement> {
        let mut branches = Vec::new();
        let mut condition = Some(self.expression()?);
        loop {
            self.end_statement()?;
            let ends: &[&str] = match condition {
                Some(_) => &["elif", "else", "endif"],
                None => &["endif"],
            };
            branches.push((condition, self.body(ends)?));
            match &*self.name()? {
                "elif" => condition = Some(self.expression()?),
                "else" => condition = None,
                _ => break,
            }
        }
        self.end_statement()?;
        Ok(Statement::If(branches))
    }

    fn for_statement(&mut self) -> Outcome<Statement> {
        let target = self.target()?;
        if !self.skip_name("in") {
            return self.fail("expected \"in\"");
        }
        let items = self.expression_without_if()?;
        let condition = if self.skip_name("if") {
            Some(self.expression()?)
        } else {
            None
        };
        let recursive = self.skip_name("recursive");
        self.end_statement()?;
        let body = self.body(&["else", "endfor"])?;
        let otherwise = match &*self.name()? {
            "else" => self.body_to("endfor")?,
            _ => Vec::new(),
        };
        Ok(Statement::For(Arc::new(For {
            target,
            items,
            condition,
            body,
            otherwise,
            recursive,
        })))
    }

    fn set(&mut self) -> Outcome<Statement> {
        let target = self.target()?;
        if self.skip_op("=") {
            let value = self.tuple_or_expression()?;
            self.end_statement()?;
            return Ok(Statement::Set(target, value));
        }
        let filter = if self.skip_op("|") {
            Some(self.filters(None)?)
        } else {
            None
        };
        let body = self.body_to("endset")?;
        self.end_statement()?;
        Ok(Statement::SetBlock(target, filter, body))
    }

    /// Parses the parameters of a macro, after the parenthesis.
    fn parameters(&mut self) -> Outcome<Vec<(Arc<str>, Option<Node>)>> {
        let mut parameters = Vec::new();
        while !self.skip_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            let parameter = self.name()?;
            let default = if self.skip_op("=") {
                Some(self.expression()?)
            } else {
                None
            };
            parameters.push((parameter, default));
        }
        Ok(parameters)
    }

    fn macro_body(
        &mut self,
        name: Arc<str>,
        parameters: Vec<(Arc<str>, Option<Node>)>,
        end: &str,
    ) -> Outcome<Arc<Macro>> {
        let start = self.at;
        let body = self.body_to(end)?;
        let tokens = &self.tokens[start..self.at];
        let catches = ["varargs", "kwargs"].map(|wanted| {
            let is_wanted = |token: &Token| matches!(token, Token::Name(name) if name == wanted);
            tokens.iter().any(|(token, _)| is_wanted(token))
        });
        Ok(Arc::new(Macro {
            name,
            parameters,
            body,
            catches,
        }))
    }

    /// Parses the target of an assignment: a name, an attribute of a namespace, or several of them.
    fn target(&mut self) -> Outcome<Target> {
        let mut targets = Vec::new();
        loop {
            let target = if self.skip_op("(") {
                let inner = self.nested(Self::target)?;
                self.expect_op(")")?;
                inner
            } else {
                let name = self.name()?;
                if self.skip_op(".") {
                    Target::Attribute(name, self.name()?)
                } else {
                    Target::Name(name)
                }
            };
            if !self.skip_op(",") {
                return Ok(if targets.is_empty() {
                    target
                } else {
                    targets.push(target);
                    Target::Tuple(targets)
                });
            }
            targets.push(target);
        }
    }

    /// Parses an expression, or a tuple: several expressions separated by commas.
    fn tuple_or_expression(&mut self) -> Outcome<Node> {
        let line = self.line();
        let first = self.expression()?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op(",") {
            if matches!(self.peek(), Token::EmitEnd | Token::StatementEnd) {
                break;
            }
            items.push(self.expression()?);
        }
        Node::new(super::ast::Expr::List(items, true), line)
    }
}
