//! Syntax trees of templates. Every node stores its height, which bounds the stack for walking or dropping the tree.

use std::sync::Arc;

use super::marked::Text;
use super::{Failure, Outcome};

/// Largest height of a tree.
const MAX_HEIGHT: u32 = 300;

/// An expression and its source line.
#[derive(Debug)]
pub struct Node {
    pub expr: Box<Expr>,
    pub line: u32,
    height: u32,
}

#[derive(Debug)]
pub enum Expr {
    Const(Constant),
    Name(Arc<str>),
    /// The elements, and whether this is a tuple.
    List(Vec<Node>, bool),
    Dict(Vec<(Node, Node)>),
    Attribute(Node, Arc<str>),
    Index(Node, Node),
    /// Object, start, stop, step.
    Slice(Node, [Option<Node>; 3]),
    Call(Node, Arguments),
    Filter(Option<Node>, Arc<str>, Arguments),
    /// Object, name of the test, arguments, whether the test is negated.
    Test(Node, Arc<str>, Arguments, bool),
    Not(Node),
    Negative(Node),
    Positive(Node),
    Binary(Operator, Node, Node),
    And(Node, Node),
    Or(Node, Node),
    Compare(Node, Vec<(Comparison, Node)>),
    /// Condition, value if true, value if false.
    If(Node, Node, Option<Node>),
}

#[derive(Debug)]
pub enum Constant {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Text),
}

#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Node>,
    pub named: Vec<(Arc<str>, Node)>,
    /// Unpacked arguments, after `*` and `**`.
    pub unpacked: [Option<Node>; 2],
}

#[derive(Clone, Copy, Debug)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Concat,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// The target of an assignment.
#[derive(Debug)]
pub enum Target {
    Name(Arc<str>),
    /// Name of a namespace, and its attribute.
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub enum Statement {
    Text(String),
    Emit(Node),
    /// Conditions and bodies; the last condition may be absent (`else`).
    If(Vec<(Option<Node>, Vec<Statement>)>),
    For(Arc<For>),
    Set(Target, Node),
    /// Target, filters of the rendered body, body.
    SetBlock(Target, Option<Node>, Vec<Statement>),
    FilterBlock(Node, Vec<Statement>),
    With(Vec<(Target, Node)>, Vec<Statement>),
    Macro(Arc<Macro>),
    /// The call of a macro, and the body that the macro gets as `caller`.
    CallBlock(Node, Arc<Macro>),
    /// Statements without a separate scope.
    Inline(Vec<Statement>),
    Break,
    Continue,
}

#[derive(Debug)]
pub struct For {
    pub target: Target,
    pub items: Node,
    pub condition: Option<Node>,
    pub body: Vec<Statement>,
    pub otherwise: Vec<Statement>,
    /// Whether the body may call `loop`.
    pub recursive: bool,
}

#[derive(Debug)]
pub struct Macro {
    pub name: Arc<str>,
    pub parameters: Vec<(Arc<str>, Option<Node>)>,
    pub body: Vec<Statement>,
    /// Whether the body names `varargs` and `kwargs`, which take the arguments without a parameter.
    pub catches: [bool; 2],
}

impl Node {
    /// Creates a node. Fails if the tree would be too high.
    pub fn new(expr: Expr, line: u32) -> Outcome<Node> {
        let height = 1 + expr.children().map_or(0, |height| height);
        if height > MAX_HEIGHT {
            return Err(Failure::at(line, "an expression nests too deeply"));
        }
        Ok(Node {
            expr: Box::new(expr),
            line,
            height,
        })
    }
}

impl Expr {
    /// The largest height of the children.
    fn children(&self) -> Option<u32> {
        let of = |nodes: &[&Node]| nodes.iter().map(|node| node.height).max();
        match self {
            Expr::Const(_) | Expr::Name(_) => None,
            Expr::List(items, _) => items.iter().map(|node| node.height).max(),
            Expr::Dict(entries) => {
                let heights = entries
                    .iter()
                    .map(|(key, value)| key.height.max(value.height));
                heights.max()
            }
            Expr::Attribute(node, _)
            | Expr::Not(node)
            | Expr::Negative(node)
            | Expr::Positive(node) => of(&[node]),
            Expr::Index(a, b) | Expr::Binary(_, a, b) | Expr::And(a, b) | Expr::Or(a, b) => {
                of(&[a, b])
            }
            Expr::Slice(node, parts) => {
                let parts = parts.iter().flatten().map(|node| node.height).max();
                parts.max(Some(node.height))
            }
            Expr::Call(node, arguments) | Expr::Test(node, _, arguments, _) => {
                arguments.height().max(Some(node.height))
            }
            Expr::Filter(node, _, arguments) => arguments
                .height()
                .max(node.as_ref().map(|node| node.height)),
            Expr::Compare(node, rest) => {
                let rest = rest.iter().map(|(_, node)| node.height).max();
                rest.max(Some(node.height))
            }
            Expr::If(condition, value, otherwise) => {
                let both = condition.height.max(value.height);
                otherwise.as_ref().map(|node| node.height).max(Some(both))
            }
        }
    }
}

impl Arguments {
    fn height(&self) -> Option<u32> {
        let named = self.named.iter().map(|(_, node)| node);
        self.positional
            .iter()
            .chain(named)
            .chain(self.unpacked.iter().flatten())
            .map(|node| node.height)
            .max()
    }
}
