//! Limits on grammars, found by measurement: what llguidance needs more than a second, 64 MiB or the stack of its thread for. Its own limits
//! bound neither recursion nor the products of automata.

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::grammar::Grammar;

/// Largest size of a grammar in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Largest size of the rules of a Lark grammar in bytes, without the schemas in them: a byte takes up to 500 bytes of memory.
const MOST_RULE_BYTES: usize = 160 << 10;
/// Deepest nesting of brackets or values.
const MOST_DEPTH: usize = 100;
/// Largest sum of the nesting depths of all rules, or of all schemas that a `$ref` names. The compiler recurses at most as deep, and a level
/// takes up to 6 KiB of [`STACK`].
const MOST_LEVELS: usize = 8192;
/// The stack of the thread that compiles grammars, in bytes. Unused pages take no memory.
pub const STACK: usize = 256 << 20;
/// Most names in the `properties` and `required` of a schema: compiling them takes quadratic time.
const MOST_NAMES: usize = 4096;
/// Most expressions that are intersected, by `&` or within `allOf`: each may double the automaton.
const MOST_INTERSECTED: usize = 12;
/// Most `patternProperties`: each is compared with every other.
const MOST_PATTERN_PROPERTIES: usize = 32;
/// Largest `multipleOf`, without its decimal point, or product of all of them if schemas are merged: the size of an automaton.
const MOST_MULTIPLE: u64 = 4096;

/// Checks the size of a grammar.
///
/// # Errors
/// [`Error::Invalid`] with the quantity and its limit.
pub fn check(grammar: &Grammar) -> Result<()> {
    match grammar {
        Grammar::JsonObject => Ok(()),
        Grammar::JsonSchema(schema) => check_schema(schema),
        Grammar::Regex(text) => {
            at_most(text.len(), MOST_BYTES, "bytes")?;
            at_most(deepest(text), MOST_DEPTH, "levels of brackets")
        }
        Grammar::Lark(text) => check_lark(text),
    }
}

fn at_most(found: usize, most: usize, what: &str) -> Result<()> {
    if found > most {
        let reason = format!("found {found} {what}, expected at most {most}");
        return Err(Error::invalid("grammar", reason));
    }
    Ok(())
}

/// Nesting depth of brackets in a text, including those inside quotes.
fn deepest(text: &str) -> usize {
    let (mut deepest, mut depth) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn check_lark(text: &str) -> Result<()> {
    at_most(text.len(), MOST_BYTES, "bytes")?;
    at_most(deepest(text), MOST_DEPTH, "levels of brackets")?;
    // A rule may take several lines; counting each line as a rule is safe.
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let levels = lines.map(|line| 1 + deepest(line)).sum();
    at_most(levels, MOST_LEVELS, "levels of rules and their brackets")?;
    at_most(intersections(text), MOST_INTERSECTED, "operators &")?;
    let (mut rules, mut end) = (text.len(), 0);
    for (at, name) in text.match_indices("%json") {
        let start = at + name.len();
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter();
        if let Some(Ok(schema)) = values.next() {
            check_schema(&schema)?;
            // The directive's name within a schema's text begins no other schema.
            if start >= end {
                end = start + values.byte_offset();
                rules -= end - start;
            }
        }
    }
    at_most(rules, MOST_RULE_BYTES, "bytes of rules")
}

/// Counts `&` outside texts and regular expressions.
fn intersections(text: &str) -> usize {
    let (mut count, mut quote, mut escaped) = (0, None, false);
    for byte in text.bytes() {
        match quote {
            // A quote or slash without an end, as in a comment, ends with its line.
            Some(_) if byte == b'\n' => quote = None,
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if matches!(byte, b'"' | b'/') => quote = Some(byte),
            None => count += usize::from(byte == b'&'),
        }
    }
    count
}

/// Quantities of a schema, summed over all its parts.
#[derive(Default)]
struct Counts {
    depth: usize,
    names: usize,
    pattern_properties: usize,
    /// Patterns and formats within `allOf`.
    intersected: usize,
    largest_multiple: u64,
    multiples: u64,
    merges: bool,
}

fn check_schema(schema: &Value) -> Result<()> {
    at_most(schema.to_string().len(), MOST_BYTES, "bytes")?;
    let (mut counts, mut references) = (Counts::default(), Vec::new());
    counts.multiples = 1;
    let mut open = vec![(schema, 1, false)];
    while let Some((value, depth, merged)) = open.pop() {
        counts.depth = counts.depth.max(depth);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1, merged))),
            Value::Object(map) => {
                counts.add(map, merged);
                references.extend(map.get("$ref").and_then(Value::as_str));
                let next = |(key, item)| (item, depth + 1, merged || key == "allOf");
                open.extend(map.iter().map(next));
            }
            _ => {}
        }
    }
    at_most(counts.depth, MOST_DEPTH, "levels of values")?;
    references.sort_unstable();
    references.dedup();
    let target = |name: &&str| name.strip_prefix('#').and_then(|path| schema.pointer(path));
    let depths = references
        .iter()
        .map(|name| target(name).map_or(counts.depth, depth_of));
    at_most(
        counts.depth + depths.sum::<usize>(),
        MOST_LEVELS,
        "levels of schemas that $ref names",
    )?;
    at_most(counts.names, MOST_NAMES, "properties and required names")?;
    at_most(
        counts.pattern_properties,
        MOST_PATTERN_PROPERTIES,
        "patternProperties",
    )?;
    at_most(
        counts.intersected,
        MOST_INTERSECTED,
        "patterns within allOf",
    )?;
    let multiple = match counts.merges {
        true => counts.multiples,
        false => counts.largest_multiple,
    };
    at_most(multiple as usize, MOST_MULTIPLE as usize, "as multipleOf")
}

impl Counts {
    fn add(&mut self, map: &Map<String, Value>, merged: bool) {
        let length = |key| {
            map.get(key).map_or(0, |value: &Value| match value {
                Value::Object(map) => map.len(),
                Value::Array(items) => items.len(),
                _ => 0,
            })
        };
        self.names += length("properties").max(length("required"));
        self.pattern_properties += length("patternProperties");
        let is_text = |key: &&str| map.get(*key).is_some_and(Value::is_string);
        self.intersected += match merged {
            true => ["pattern", "format"]
                .iter()
                .filter(|key| is_text(key))
                .count(),
            false => 0,
        };
        self.merges |= map.contains_key("allOf") || (map.contains_key("$ref") && map.len() > 1);
        if let Some(Value::Number(multiple)) = map.get("multipleOf") {
            let coefficient = coefficient(&multiple.to_string());
            self.largest_multiple = self.largest_multiple.max(coefficient);
            self.multiples = self.multiples.saturating_mul(coefficient.max(1));
        }
    }
}

/// The digits of a number without its point, its exponent and zeros at its end.
fn coefficient(number: &str) -> u64 {
    let digits = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let has_point = number.contains('.');
    let digits = if has_point {
        digits.trim_end_matches('0')
    } else {
        &digits
    };
    digits
        .parse()
        .unwrap_or(if digits.is_empty() { 0 } else { u64::MAX })
}

/// Nesting depth of objects and arrays, computed without recursion.
fn depth_of(value: &Value) -> usize {
    let (mut deepest, mut open) = (0, vec![(value, 1)]);
    while let Some((value, depth)) = open.pop() {
        deepest = deepest.max(depth);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(grammar: Grammar) -> String {
        check(&grammar).map_or_else(|error| error.to_string(), |()| String::new())
    }

    /// A number of the document, such as `8,192`.
    fn shown(number: usize) -> String {
        let (thousands, rest) = (number / 1000, number % 1000);
        match thousands {
            0 => rest.to_string(),
            _ => format!("{thousands},{rest:03}"),
        }
    }

    #[test]
    fn the_document_has_the_limits() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md");
        let page = std::fs::read_to_string(path).expect("security.md");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = format!(
            "Grammars are compiled on a thread with a stack of {} MiB, in at most {} s, two at once ({} in a library's process); \
             they have at most {} MiB, {} KiB of rules outside of schemas, {MOST_DEPTH} levels of brackets, {} levels summed over \
             rules or `$ref` targets, {} properties, {MOST_PATTERN_PROPERTIES} `patternProperties`, {MOST_INTERSECTED} patterns within \
             `allOf` or operators `&`, and a `multipleOf` of at most {}",
            STACK >> 20,
            crate::constraint::LONGEST.as_secs(),
            crate::constraint::MOST_AT_ONCE,
            MOST_BYTES >> 20,
            MOST_RULE_BYTES >> 10,
            shown(MOST_LEVELS),
            shown(MOST_NAMES),
            shown(MOST_MULTIPLE as usize),
        );
        assert!(page.contains(&sentence), "security.md lacks: {sentence}");
    }

    fn chain(rules: usize) -> Grammar {
        let rules = (0..rules).map(|i| format!("r{i}: r{} \"a\"\n", i + 1));
        Grammar::Lark(format!("start: r0\n{}", rules.collect::<String>()))
    }

    #[test]
    fn levels_are_counted_in_the_structure() {
        assert_eq!(refusal(chain(8000)), "");
        assert!(refusal(chain(9000)).contains("found 9001 levels of rules"));
        let nested = format!("start: {}\"a\"{}\n", "(".repeat(60), ")".repeat(60));
        assert!(refusal(Grammar::Lark(nested.repeat(200))).contains("levels of rules"));
        let reference =
            |i: usize| json!({ "properties": { "x": { "$ref": format!("#/$defs/d{i}") } } });
        let defined = (0..3000).map(|i| (format!("d{i}"), reference(i + 1)));
        let schema = json!({ "$ref": "#/$defs/d0", "$defs": defined.collect::<Map<_, _>>() });
        assert!(refusal(Grammar::JsonSchema(schema)).contains("levels of schemas"));
    }

    #[test]
    fn products_of_automata_are_refused() {
        let and = |count: usize| vec!["/[a-z]*x[a-z]*/"; count].join(" & ");
        assert_eq!(
            refusal(Grammar::Lark(format!("start: T\nT: {}", and(10)))),
            ""
        );
        assert!(
            refusal(Grammar::Lark(format!("start: T\nT: {}", and(20)))).contains("19 operators &")
        );
        assert_eq!(
            refusal(Grammar::Lark(format!("start: {:?}", "&".repeat(50)))),
            ""
        );
        let schema = |schema| refusal(Grammar::JsonSchema(schema));
        let pattern = |i: usize| json!({ "pattern": format!("x{i}") });
        let all: Vec<Value> = (0..20).map(pattern).collect();
        assert!(schema(json!({ "allOf": all })).contains("20 patterns within allOf"));
        assert_eq!(schema(json!({ "anyOf": all })), "");
        assert!(schema(json!({ "multipleOf": 1000003 })).contains("multipleOf"));
        assert_eq!(
            schema(
                json!({ "anyOf": [{ "multipleOf": 0.01 }, { "multipleOf": 900 }, { "multipleOf": 700 }] })
            ),
            ""
        );
        let multiples = json!([{ "multipleOf": 97 }, { "multipleOf": 89 }]);
        assert!(schema(json!({ "allOf": multiples })).contains("found 8633 as multipleOf"));
        let embedded = format!("start: %json {}", json!({ "multipleOf": 1000003 }));
        assert!(refusal(Grammar::Lark(embedded)).contains("multipleOf"));
        let long = "\"a\"? ".repeat(40_000);
        assert!(refusal(Grammar::Lark(format!("start: {long}"))).contains("200007 bytes of rules"));
        let long = json!({ "const": "%json 1 ".repeat(40_000) });
        assert_eq!(
            refusal(Grammar::Lark(format!("start: \"b\" %json {long}"))),
            ""
        );
        let names: Vec<String> = (0..5000).map(|i| format!("r{i}")).collect();
        assert!(schema(json!({ "required": names })).contains("5000 properties"));
        let patterns = (0..40).map(|i| (format!("^x{i}y"), json!({})));
        let patterns = patterns.collect::<Map<_, _>>();
        assert!(schema(json!({ "patternProperties": patterns })).contains("40 patternProperties"));
    }
}
