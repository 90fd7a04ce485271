//! Parses tokens into expressions, with Jinja's operator precedence.

use std::sync::Arc;

use super::Outcome;
use super::ast::{Arguments, Comparison, Constant, Expr, Node, Operator};
use super::lexer::Token;
use super::marked::Text;
use super::parser::Parser;

impl Parser {
    /// Parses an expression, including `a if b else c`.
    pub(super) fn expression(&mut self) -> Outcome<Node> {
        self.nested(|parser| {
            let mut value = parser.or()?;
            while parser.is_name("if") {
                let line = parser.line();
                parser.next();
                let condition = parser.or()?;
                let otherwise = if parser.skip_name("else") {
                    Some(parser.expression()?)
                } else {
                    None
                };
                value = Node::new(Expr::If(condition, value, otherwise), line)?;
            }
            Ok(value)
        })
    }

    /// Parses an expression in a place where `if` has another meaning.
    pub(super) fn expression_without_if(&mut self) -> Outcome<Node> {
        let line = self.line();
        let first = self.nested(Self::or)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op(",") {
            items.push(self.nested(Self::or)?);
        }
        Node::new(Expr::List(items, true), line)
    }

    fn or(&mut self) -> Outcome<Node> {
        let mut left = self.and()?;
        while self.is_name("or") {
            let line = self.line();
            self.next();
            left = Node::new(Expr::Or(left, self.and()?), line)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Outcome<Node> {
        let mut left = self.not()?;
        while self.is_name("and") {
            let line = self.line();
            self.next();
            left = Node::new(Expr::And(left, self.not()?), line)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Outcome<Node> {
        let line = self.line();
        if !self.skip_name("not") {
            return self.comparison();
        }
        let inner = self.nested(Self::not)?;
        Node::new(Expr::Not(inner), line)
    }

    fn comparison(&mut self) -> Outcome<Node> {
        let line = self.line();
        let left = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison_sign()? {
            rest.push((comparison, self.sum()?));
        }
        if rest.is_empty() {
            Ok(left)
        } else {
            Node::new(Expr::Compare(left, rest), line)
        }
    }

    fn comparison_sign(&mut self) -> Outcome<Option<Comparison>> {
        let comparison = match self.peek() {
            Token::Op("==") => Comparison::Equal,
            Token::Op("!=") => Comparison::NotEqual,
            Token::Op("<") => Comparison::Less,
            Token::Op("<=") => Comparison::LessEqual,
            Token::Op(">") => Comparison::Greater,
            Token::Op(">=") => Comparison::GreaterEqual,
            Token::Name(name) if name == "in" => Comparison::In,
            Token::Name(name) if name == "not" => {
                self.next();
                if self.skip_name("in") {
                    return Ok(Some(Comparison::NotIn));
                } else {
                    return self.fail("expected \"in\"");
                }
            }
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(comparison))
    }

    fn binary(
        &mut self,
        operators: &[(&str, Operator)],
        operand: fn(&mut Self) -> Outcome<Node>,
    ) -> Outcome<Node> {
        let mut left = operand(self)?;
        loop {
            let line = self.line();
            let found = operators.iter().find(|(sign, _)| self.is_op(sign));
            let Some(&(_, operator)) = found else {
                return Ok(left);
            };
            self.next();
            left = Node::new(Expr::Binary(operator, left, operand(self)?), line)?;
        }
    }

    fn sum(&mut self) -> Outcome<Node> {
        self.binary(
            &[("+", Operator::Add), ("-", Operator::Subtract)],
            Self::concat,
        )
    }

    fn concat(&mut self) -> Outcome<Node> {
        self.binary(&[("~", Operator::Concat)], Self::product)
    }

    fn product(&mut self) -> Outcome<Node> {
        const OPERATORS: [(&str, Operator); 4] = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.binary(&OPERATORS, Self::power)
    }

    fn power(&mut self) -> Outcome<Node> {
        self.binary(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Outcome<Node> {
        let line = self.line();
        let node = if self.skip_op("-") {
            let inner = self.nested(|parser| parser.unary(false))?;
            Node::new(Expr::Negative(inner), line)?
        } else if self.skip_op("+") {
            let inner = self.nested(|parser| parser.unary(false))?;
            Node::new(Expr::Positive(inner), line)?
        } else {
            self.primary()?
        };
        let node = self.postfix(node)?;
        if with_filters {
            self.filters_and_tests(node)
        } else {
            Ok(node)
        }
    }

    fn primary(&mut self) -> Outcome<Node> {
        let line = self.line();
        let constant = match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Constant::Bool(true),
                "false" | "False" => Constant::Bool(false),
                "none" | "None" => Constant::None,
                _ => return Node::new(Expr::Name(name.into()), line),
            },
            Token::Str(mut text) => {
                while let Token::Str(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                Constant::Str(Text::template(&text))
            }
            Token::Int(value) => Constant::Int(value),
            Token::Float(value) => Constant::Float(value),
            Token::Op("(") => {
                let (mut items, tuple) = self.items(")")?;
                return match (items.len(), tuple) {
                    (1, false) => Ok(items.remove(0)),
                    _ => Node::new(Expr::List(items, true), line),
                };
            }
            Token::Op("[") => {
                let (items, _) = self.items("]")?;
                return Node::new(Expr::List(items, false), line);
            }
            Token::Op("{") => return self.dict(line),
            _ => return self.fail("expected an expression"),
        };
        Node::new(Expr::Const(constant), line)
    }

    /// Parses expressions separated by commas up to `end`. Also returns whether there was a comma.
    fn items(&mut self, end: &str) -> Outcome<(Vec<Node>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        while !self.skip_op(end) {
            if !items.is_empty() {
                self.expect_op(",")?;
                comma = true;
                if self.skip_op(end) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok((items, comma))
    }

    fn dict(&mut self, line: u32) -> Outcome<Node> {
        let mut entries = Vec::new();
        while !self.skip_op("}") {
            if !entries.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            entries.push((key, self.expression()?));
        }
        Node::new(Expr::Dict(entries), line)
    }

    /// Parses attributes, indices and calls.
    fn postfix(&mut self, mut node: Node) -> Outcome<Node> {
        loop {
            let line = self.line();
            node = if self.skip_op(".") {
                match self.next() {
                    Token::Name(name) => Node::new(Expr::Attribute(node, name.into()), line)?,
                    Token::Int(index) => {
                        let index = Node::new(Expr::Const(Constant::Int(index)), line)?;
                        Node::new(Expr::Index(node, index), line)?
                    }
                    _ => return self.fail("expected a name"),
                }
            } else if self.skip_op("[") {
                self.subscript(node, line)?
            } else if self.skip_op("(") {
                let arguments = self.arguments()?;
                Node::new(Expr::Call(node, arguments), line)?
            } else {
                return Ok(node);
            };
        }
    }

    /// Parses an index or a slice, after the bracket.
    fn subscript(&mut self, node: Node, line: u32) -> Outcome<Node> {
        let mut parts = [None, None, None];
        let mut part = 0;
        loop {
            if !self.is_op(":") && !self.is_op("]") {
                parts[part] = Some(self.expression()?);
            }
            if self.skip_op("]") {
                break;
            }
            self.expect_op(":")?;
            part += 1;
            if part == 3 {
                return self.fail("expected \"]\"");
            }
        }
        let [first, ..] = &mut parts;
        match (part, first.take()) {
            (0, Some(index)) => Node::new(Expr::Index(node, index), line),
            (0, None) => {
                let none = Node::new(Expr::List(Vec::new(), true), line)?;
                Node::new(Expr::Index(node, none), line)
            }
            (_, start) => {
                parts[0] = start;
                Node::new(Expr::Slice(node, parts), line)
            }
        }
    }

    /// Parses the arguments of a call, after the parenthesis.
    fn arguments(&mut self) -> Outcome<Arguments> {
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.skip_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            first = false;
            let unpacks = [self.skip_op("*"), self.skip_op("**")];
            if let Some(which) = unpacks.iter().position(|unpacks| *unpacks) {
                arguments.unpacked[which] = Some(self.expression()?);
                continue;
            }
            let named = match self.peek() {
                Token::Name(_) => matches!(self.after_next(), Token::Op("=")),
                _ => false,
            };
            if named {
                let name: Arc<str> = self.name()?;
                self.next();
                arguments.named.push((name, self.expression()?));
            } else if arguments.named.is_empty() {
                arguments.positional.push(self.expression()?);
            } else {
                return self.fail("a positional argument follows a keyword argument");
            }
        }
        Ok(arguments)
    }

    fn filters_and_tests(&mut self, mut node: Node) -> Outcome<Node> {
        loop {
            node = if self.skip_op("|") {
                self.one_filter(Some(node))?
            } else if self.is_name("is") {
                self.test(node)?
            } else if self.is_op("(") {
                self.postfix(node)?
            } else {
                return Ok(node);
            };
        }
    }

    /// Parses a chain of filters. The first is applied to `node`, or to a block's rendering.
    pub(super) fn filters(&mut self, node: Option<Node>) -> Outcome<Node> {
        let mut node = self.one_filter(node)?;
        while self.skip_op("|") {
            node = self.one_filter(Some(node))?;
        }
        Ok(node)
    }

    fn one_filter(&mut self, node: Option<Node>) -> Outcome<Node> {
        let line = self.line();
        let name = self.name()?;
        let arguments = if self.skip_op("(") {
            self.arguments()?
        } else {
            Arguments::default()
        };
        Node::new(Expr::Filter(node, name, arguments), line)
    }

    fn test(&mut self, node: Node) -> Outcome<Node> {
        let line = self.line();
        self.next();
        let negated = self.skip_name("not");
        let name = self.name()?;
        let mut arguments = Arguments::default();
        let begins_argument = match self.peek() {
            Token::Name(name) => {
                !["else", "or", "and", "is", "if", "in", "not"].contains(&name.as_str())
            }
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{") => true,
            _ => false,
        };
        if self.skip_op("(") {
            arguments = self.arguments()?;
        } else if begins_argument {
            let argument = self.nested(Self::primary)?;
            arguments.positional.push(self.postfix(argument)?);
        }
        Node::new(Expr::Test(node, name, arguments, negated), line)
    }
}
