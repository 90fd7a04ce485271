//! JSON from untrusted sources. A text is parsed only if it holds no more values than a file of its kind can need, since a value in memory
//! takes up to sixty times the bytes that it takes in the file.

use serde_json::Value;

use crate::room::ask_room;

/// Bytes of memory per value; a name in an object counts as a value.
const OF_VALUE: usize = 64;

/// Parses a text of at most `most` values.
///
/// # Errors
/// A noun phrase that names the unreadable part.
pub fn read_json(text: &[u8], most: usize) -> Result<Value, String> {
    let values = values_at_most(text);
    if values > most {
        return Err(format!(
            "{values} values, more than the {most} that are read"
        ));
    }
    ask_room_for_values(text, values).map_err(|error| error.to_string())?;
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Fails if there is not enough memory for the values of a text.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory).
pub(crate) fn ask_room_for_json(text: &[u8]) -> crate::Result<()> {
    ask_room_for_values(text, values_at_most(text))
}

fn ask_room_for_values(text: &[u8], values: usize) -> crate::Result<()> {
    ask_room(values.saturating_mul(OF_VALUE).saturating_add(text.len()))
}

/// Returns an upper bound on the number of values in a text, including the names in objects: each value but the first follows one of these
/// characters outside a string.
pub fn values_at_most(text: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in text {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b',' | b':' | b'[' | b'{') => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_before_they_are_read() {
        let text = br#"{"a[,:{\"": [1, 2, {"b": "\\"}], "c": null}"#;
        let count = |value: &Value| values_at_most(value.to_string().as_bytes());
        // Two names and the object, the list of three, an object of a name and a text, null: 10 values in all.
        assert_eq!(count(&read_json(text, 12).unwrap()), values_at_most(text));
        assert!((10..=12).contains(&values_at_most(text)));
        for text in ["[0,0,0]", "{\"a\":0,\"b\":0}", "[[[]]]"] {
            let error = read_json(text.as_bytes(), 2).unwrap_err();
            assert!(error.contains("more than the 2"), "{error}");
        }
        assert!(read_json(b"[1, 2", 9).unwrap_err().contains("EOF"));
    }
}
