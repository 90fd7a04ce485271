//! GPT-2's alphabet, in which byte-level vocabularies write bytes as characters.

/// A table between bytes and characters. Printable Latin-1 bytes map to themselves, all others to consecutive characters from U+0100.
pub struct Alphabet {
    byte_of: [Option<u8>; 0x144],
    characters: [char; 256],
}

impl Default for Alphabet {
    fn default() -> Self {
        let (mut byte_of, mut characters) = ([None; 0x144], ['\0'; 256]);
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let code = match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
                _ => {
                    next += 1;
                    next - 1
                }
            };
            byte_of[code as usize] = Some(byte);
            characters[usize::from(byte)] = char::from_u32(code).unwrap_or_default();
        }
        Self {
            byte_of,
            characters,
        }
    }
}

impl Alphabet {
    /// Converts a token to its bytes. Characters outside the alphabet map to their UTF-8 bytes.
    pub fn decode(&self, token: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(token.len());
        for character in token.chars() {
            match self.byte_of.get(character as usize).copied().flatten() {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes
    }

    /// Converts bytes to a token.
    pub fn encode(&self, bytes: &[u8]) -> String {
        let character = |&byte: &u8| self.characters[usize::from(byte)];
        bytes.iter().map(character).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_holds_every_byte_once() {
        let alphabet = Alphabet::default();
        let mut bytes: Vec<u8> = alphabet.byte_of.iter().flatten().copied().collect();
        bytes.sort();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(alphabet.decode("ĠHiĊ"), b" Hi\n");
        assert_eq!(alphabet.decode("Ã©"), "é".as_bytes());
        assert_eq!(alphabet.decode("日"), "日".as_bytes());
        assert_eq!(alphabet.encode(b" Hi\n"), "ĠHiĊ");
        assert_eq!(alphabet.decode(&alphabet.encode(&bytes)), bytes);
    }
}
