use std::collections::HashMap;

/// RWKV's vocabulary: a trie of byte strings with longest-match search.
pub(super) struct Rwkv {
    /// Transitions: the node reached from a node by a byte.
    children: HashMap<(u32, u8), u32>,
    /// The token that ends at each node.
    ends: Vec<Option<u32>>,
    unknown: Option<u32>,
}

impl Rwkv {
    /// Builds the trie of these byte strings.
    pub fn new<'t>(tokens: impl Iterator<Item = (&'t [u8], u32)>, unknown: Option<u32>) -> Self {
        let mut trie = Rwkv {
            children: HashMap::new(),
            ends: vec![None],
            unknown,
        };
        for (bytes, id) in tokens.filter(|(bytes, _)| !bytes.is_empty()) {
            let mut place = 0;
            for &byte in bytes {
                let new = trie.ends.len() as u32;
                place = *trie.children.entry((place, byte)).or_insert(new);
                if place == new {
                    trie.ends.push(None);
                }
            }
            trie.ends[place as usize] = Some(id);
        }
        trie
    }

    /// Splits `text` into tokens, each with its byte offset. The error is a reason.
    pub fn tokenize(&self, text: &str) -> Result<Vec<(u32, usize)>, String> {
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        let mut start = 0;
        while start < bytes.len() {
            let (mut place, mut at, mut best) = (0, start, None);
            while let Some(&byte) = bytes.get(at) {
                let Some(&next) = self.children.get(&(place, byte)) else {
                    break;
                };
                (place, at) = (next, at + 1);
                if let Some(id) = self.ends[place as usize] {
                    best = Some((id, at));
                }
            }
            let best = best.or(self.unknown.map(|id| (id, start + 1)));
            let Some((id, end)) = best else {
                return Err(format!(
                    "the vocabulary has no token for the byte {:#04x}",
                    bytes[start]
                ));
            };
            found.push((id, start));
            start = end;
        }
        Ok(found)
    }
}

/// Decodes the escapes of a token in a GGUF file: `
/// `, `\t`, `\r`, `\xff`, and a backslash before a literal character.
pub(super) fn unescape(token: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes().iter().copied();
    let digit = |byte: Option<u8>| (byte.unwrap_or(b'0') as char).to_digit(16).unwrap_or(0) as u8;
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b't') => bytes.push(b'\t'),
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'x') => {
                let high = digit(rest.next());
                bytes.push(high << 4 | digit(rest.next()));
            }
            other => bytes.extend(other),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_is_taken() {
        let tokens: Vec<Vec<u8>> = ["a", "ab", "abcd", "c", "\\xc3", "\\xa9\\n", "\\\\", "\\'"]
            .map(unescape)
            .to_vec();
        assert_eq!(
            tokens[4..],
            [vec![0xc3], vec![0xa9, b'\n'], vec![b'\\'], vec![b'\'']]
        );
        let ids = || tokens.iter().zip(1..).map(|(token, id)| (&token[..], id));
        let trie = Rwkv::new(ids(), None);
        let ids_of = |text| {
            trie.tokenize(text)
                .map(|found| found.into_iter().map(|(id, _)| id).collect::<Vec<_>>())
        };
        assert_eq!(ids_of("abcabcd"), Ok(vec![2, 4, 3]));
        assert_eq!(ids_of("é\n\\'"), Ok(vec![5, 6, 7, 8]));
        ids_of("é").unwrap_err();
        let trie = Rwkv::new(ids(), Some(9));
        assert_eq!(trie.tokenize("az").map(|found| found.len()), Ok(2));
    }
}
