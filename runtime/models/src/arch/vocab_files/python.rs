//! Python literals: strings and byte strings.

/// The bytes of a literal, in UTF-8 for a string; `None` if it is neither a string nor a byte string.
pub(super) fn literal(source: &str) -> Option<Vec<u8>> {
    let (is_bytes, quoted) = match source.strip_prefix(['b', 'B']) {
        Some(quoted) => (true, quoted),
        None => (false, source),
    };
    let quote = quoted.chars().next().filter(|c| "'\"".contains(*c))?;
    let body = quoted[1..].strip_suffix(quote)?;
    let mut bytes = Vec::with_capacity(body.len());
    let mut rest = body.chars();
    let push = |bytes: &mut Vec<u8>, code: u32| {
        if is_bytes {
            u8::try_from(code).map(|byte| bytes.push(byte)).ok()
        } else {
            char::from_u32(code)
                .map(|c| bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()))
        }
    };
    while let Some(c) = rest.next() {
        if c == quote || is_bytes && !c.is_ascii() {
            return None;
        }
        if c != '\\' {
            push(&mut bytes, c.into())?;
            continue;
        }
        let code = match rest.next()? {
            'n' => 10,
            'r' => 13,
            't' => 9,
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            'x' => digits(&mut rest, 2)?,
            'u' if !is_bytes => digits(&mut rest, 4)?,
            'U' if !is_bytes => digits(&mut rest, 8)?,
            '0' => 0,
            c if "\\'\"".contains(c) => c.into(),
            _ => return None,
        };
        push(&mut bytes, code)?;
    }
    Some(bytes)
}

/// Reads a number of `count` hexadecimal digits.
fn digits(rest: &mut std::str::Chars, count: usize) -> Option<u32> {
    (0..count).try_fold(0u32, |number, _| {
        Some(number << 4 | rest.next()?.to_digit(16)?)
    })
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn literals_are_what_python_reads() {
        for (source, bytes) in [
            ("'a'", &b"a"[..]),
            ("\"it's\"", b"it's"),
            ("'\\''", b"'"),
            ("'\\n\\t\\r\\\\'", b"\n\t\r\\"),
            ("'\\xa0'", b"\xc2\xa0"),
            ("b'\\xa0\\x00~'", b"\xa0\x00~"),
            ("'\\u2002'", "\u{2002}".as_bytes()),
            ("'\\U0001f600\u{e9}'", "\u{1f600}\u{e9}".as_bytes()),
            ("b\"'\"", b"'"),
            ("''", b""),
        ] {
            assert_eq!(literal(source).as_deref(), Some(bytes), "{source}");
        }
        for other in [
            "",
            "a",
            "'",
            "'a",
            "'a\"",
            "b'\u{e9}'",
            "'\\q'",
            "'\\xz0'",
            "'\\ud800'",
            "'a'b'",
        ] {
            assert_eq!(literal(other), None, "{other}");
        }
    }
}
