//! Wallets: creation, decryption, recovery, and rejection of invalid input.

use florin_protocol::verify_wallet;

use super::*;

/// The PBKDF2 example of the Web3 Secret Storage definition.
const PBKDF2: &str = r#"{"crypto":{"cipher":"aes-128-ctr","cipherparams":{"iv":
"6087dab2f9fdbbfaddc31a909735c1e6"},"ciphertext":
"5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46","kdf":"pbkdf2","kdfparams":{
"c":262144,"dklen":32,"prf":"hmac-sha256","salt":
"ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd"},"mac":
"517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2"},
"id":"3198bc9c-6672-5ab3-d995-4942343ae5b6","version":3}"#;
const PBKDF2_SECRET: &str = "7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d";
const PBKDF2_PASSPHRASE: &str = "testpassword";
/// The scrypt example of eth-keystore's tests.
const SCRYPT: &str = r#"{"version":3,"id":"23fb6c51-79c8-4ce5-a02a-0f4f169a4168","crypto":{
"ciphertext":"eb7302cc8669683e49fc40f3445464020568a1d82e71c977264f286a3099be58","cipherparams":{
"iv":"2a9fc5d709ab79e7f015111b93872f6c"},"cipher":"aes-128-ctr","kdf":"scrypt","kdfparams":{
"dklen":32,"salt":"19a1b0af7a3f4f04a4e8d1cf722550e905da18b369029b0460b12765f19d8a99","n":8192,
"r":8,"p":1},"mac":"b2987a6adb597af26705042977c55ea132ca1391220455769eba2bc0b239089b"}}"#;
const SCRYPT_SECRET: &str = "80d3a6ed7b24dcd652949bc2f3827d2f883b3722e3120b15a93a2e0790f03829";
const SCRYPT_PASSPHRASE: &str = "grOQ8QDnGHvpYJf";
/// From geth's tests: a key with an omitted leading zero byte.
const SHORT: &str = r#"{"crypto":{"cipher":"aes-128-ctr","cipherparams":{"iv":
"e0c41130a323adc1446fc82f724bca2f"},"ciphertext":
"9517cd5bdbe69076f9bf5057248c6c050141e970efa36ce53692d5d59a3984","kdf":"scrypt","kdfparams":{
"dklen":32,"n":2,"r":8,"p":1,"salt":
"711f816911c92d649fb4c84b047915679933555030b3552c1212609b38208c63"},"mac":
"d5e116151c6aa71470e67a7d42c9620c75c4d23229847dcc127794f0732b0db5"},
"id":"fecfc4ce-e956-48fd-953b-30f8b52ed66c","version":3}"#;
const SHORT_SECRET: &str = "00fa7b3db73dc7dfdf8c5fbdb796d741e4488628c41fc4febd9160a866ba0f35";
const SHORT_PASSPHRASE: &str = "foo";
const SECRET: &str = PBKDF2_SECRET;

fn secret(text: &str) -> Secret {
    Secret::new(text.to_owned())
}

/// A fresh folder, and a path in it.
fn wallet_path() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wallet.json");
    (folder, path)
}

#[test]
fn published_keystores_decrypt_to_the_published_keys() {
    let table = [
        (PBKDF2, PBKDF2_PASSPHRASE, PBKDF2_SECRET, "0x008AeEda4D805471dF9b2A5B0f38A0C3bCBA786b"),
        (SCRYPT, SCRYPT_PASSPHRASE, SCRYPT_SECRET, "0xAEca03483e2dBa25Dc43BAEDC9f811330d634d46"),
        (SHORT, SHORT_PASSPHRASE, SHORT_SECRET, "0xd1E64E5480bFaf733Ba7D48712DEcb8227797a4e"),
    ];
    for (text, passphrase, key, address) in table {
        let (_folder, path) = wallet_path();
        std::fs::write(&path, text).unwrap();
        let wallet = Wallet::open(&path, &secret(passphrase)).unwrap();
        assert_eq!(wallet.address().to_string(), address);
        assert_eq!(wallet.address(), Wallet::from_key(&secret(key)).unwrap().address());
        let error = Wallet::open(&path, &secret("testpassworD")).unwrap_err();
        assert_eq!(error.code(), "WRONG_PASSPHRASE");
        let flipped = text.replace("517ead", "527ead").replace("eb73", "eb72").replace("95", "94");
        std::fs::write(&path, flipped).unwrap();
        let error = Wallet::open(&path, &secret(passphrase)).unwrap_err();
        assert_eq!(
            error.code(),
            "WRONG_PASSPHRASE",
            "a flipped byte looks like a wrong passphrase"
        );
    }
}

#[test]
fn known_phrases_give_known_accounts() {
    let table = [
        (
            "test test test test test test test test test test test junk",
            "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
        ),
        (
            "  Abandon abandon abandon abandon abandon abandon abandon\nabandon abandon abandon \
             abandon ABOUT ",
            "0x9858EfFD232B4033E47d90003D41EC34EcaEda94",
        ),
    ];
    for (phrase, address) in table {
        let (_folder, path) = wallet_path();
        let passphrase = secret("p");
        let wallet =
            Wallet::import_phrase(&path, &secret(phrase), &passphrase, KeystoreStrength::Light)
                .unwrap();
        assert_eq!(wallet.address().to_string(), address);
        assert_eq!(Wallet::open(&path, &passphrase).unwrap().address(), wallet.address());
    }
}

#[test]
fn a_new_wallet_is_restored_from_its_file_and_its_phrase() {
    let (folder, path) = wallet_path();
    let passphrase = secret("a passphrase — with ünïcode");
    let (wallet, phrase) = Wallet::create(&path, &passphrase, KeystoreStrength::Light).unwrap();
    assert_eq!(phrase.reveal().split(' ').count(), PHRASE_WORDS);
    let opened = Wallet::open(&path, &passphrase).unwrap();
    let again = folder.path().join("again.json");
    let restored =
        Wallet::import_phrase(&again, &phrase, &secret("another"), KeystoreStrength::Light)
            .unwrap();
    for other in [opened, restored] {
        assert_eq!(other.address(), wallet.address());
        assert_eq!(other.node_signer().key(), wallet.node_signer().key());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    // Some names of fields are words of phrases, such as "address" and "salt".
    let written = phrase.reveal().split(' ').filter(|word| text.contains(word)).count();
    assert!(written < PHRASE_WORDS / 2, "the phrase is stored: {written} of its words");
    let other =
        Wallet::create(&folder.path().join("other"), &passphrase, KeystoreStrength::Light).unwrap();
    assert_ne!(other.0.address(), wallet.address());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn the_file_has_the_fields_of_keystore_v3() {
    let (_folder, path) = wallet_path();
    Wallet::import_key(&path, &secret(SECRET), &secret("p"), KeystoreStrength::Light).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(file["version"], 3);
    assert_eq!(file["address"], "008aeeda4d805471df9b2a5b0f38a0c3bcba786b");
    assert_eq!(file["crypto"]["kdf"], "scrypt");
    assert_eq!(file["crypto"]["kdfparams"]["n"], 4096);
    let id = file["id"].as_str().unwrap();
    assert_eq!((id.len(), &id[14..15]), (36, "4"), "{id} is a version 4 UUID");
}

#[test]
fn an_existing_wallet_is_never_overwritten() {
    let (folder, path) = wallet_path();
    let p = secret("p");
    let (wallet, _) = Wallet::create(&path, &p, KeystoreStrength::Light).unwrap();
    let before = std::fs::read(&path).unwrap();
    let refusals = [
        Wallet::create(&path, &p, KeystoreStrength::Light).map(|_| ()).unwrap_err(),
        Wallet::import_key(&path, &secret(SECRET), &p, KeystoreStrength::Light)
            .map(|_| ())
            .unwrap_err(),
        Wallet::import_keystore(&path, &path, &p, KeystoreStrength::Light).map(|_| ()).unwrap_err(),
        wallet.export(&path, &p, KeystoreStrength::Light).unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(error.code(), "KEYSTORE_EXISTS", "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let copy = folder.path().join("copy.json");
    wallet.export(&copy, &secret("q"), KeystoreStrength::Light).unwrap();
    assert_eq!(Wallet::open(&copy, &secret("q")).unwrap().address(), wallet.address());
    let third = folder.path().join("third.json");
    let third =
        Wallet::import_keystore(&third, &copy, &secret("q"), KeystoreStrength::Light).unwrap();
    assert_eq!(third.address(), wallet.address());
}

#[test]
fn invalid_keystores_are_rejected_without_a_panic() {
    let huge = SCRYPT.replace("\"n\":8192", "\"n\":1073741824");
    let odd = SCRYPT.replace("\"n\":8192", "\"n\":8191");
    let short_key = SCRYPT.replace("\"dklen\":32", "\"dklen\":8");
    let short_iv = SCRYPT.replace("2a9fc5d709ab79e7f015111b93872f6c", "2a9f");
    let no_blocks = SCRYPT.replace("\"r\":8", "\"r\":0");
    // The definition's scrypt example has these parameters; RFC 7914 excludes them, and so does
    // OpenSSL.
    let too_few_blocks = SCRYPT.replace("8192", "262144").replace("\"r\":8", "\"r\":1");
    let cipher = SCRYPT.replace("aes-128-ctr", "aes-256-gcm");
    let kdf = SCRYPT.replace("\"scrypt\"", "\"pbkdf2\"");
    let endless = PBKDF2.replace("\"c\":262144", "\"c\":4294967295");
    let version = SCRYPT.replace("\"version\":3", "\"version\":1");
    let texts = ["", "{}", "null", "\u{0}", &SCRYPT[..SCRYPT.len() - 1]];
    let changed =
        [huge, odd, short_key, short_iv, no_blocks, too_few_blocks, cipher, kdf, endless, version];
    for text in texts.into_iter().chain(changed.iter().map(String::as_str)) {
        assert!(text != SCRYPT && text != PBKDF2, "every case changes something");
        let (_folder, path) = wallet_path();
        std::fs::write(&path, text).unwrap();
        let error = Wallet::open(&path, &secret(SCRYPT_PASSPHRASE)).unwrap_err();
        assert_eq!(error.code(), "KEYSTORE_CORRUPT", "{text}: {error}");
    }
    let (_folder, path) = wallet_path();
    assert_eq!(Wallet::open(&path, &secret("p")).unwrap_err().code(), "NO_KEYSTORE");
    std::fs::write(&path, vec![b' '; 100_000]).unwrap();
    assert_eq!(Wallet::open(&path, &secret("p")).unwrap_err().code(), "FILE_ERROR");
}

#[test]
fn a_keystore_with_another_address_is_corrupt() {
    let (_folder, path) = wallet_path();
    let wallet =
        Wallet::import_key(&path, &secret(SECRET), &secret("p"), KeystoreStrength::Light).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let own = wallet.address().to_string()[2..].to_lowercase();
    std::fs::write(&path, text.replace(&own, &"11".repeat(20))).unwrap();
    let error = Wallet::open(&path, &secret("p")).unwrap_err();
    assert_eq!(error.code(), "KEYSTORE_CORRUPT", "{error}");
}

#[test]
fn invalid_phrases_and_keys_are_rejected_and_not_echoed() {
    let phrases = [
        "",
        "test test test",
        "test test test test test test test test test test test test",
        "test test test test test test test test test test test zebrafish",
        "test test test test test test test test test test test test test",
    ];
    for phrase in phrases {
        let (_folder, path) = wallet_path();
        let error =
            Wallet::import_phrase(&path, &secret(phrase), &secret("p"), KeystoreStrength::Light)
                .unwrap_err();
        assert_eq!(error.code(), "INVALID_PHRASE");
        let output = format!("{error} {error:?}");
        assert!(!output.contains("zebrafish") && !output.contains("test test"), "{output}");
    }
    let order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141";
    for key in ["", "0x12", &"0".repeat(64), order, &"x".repeat(64)] {
        let error = Wallet::from_key(&secret(key)).unwrap_err();
        assert_eq!(error.code(), "INVALID_KEY");
        assert!(key.is_empty() || !format!("{error} {error:?}").contains(key));
    }
    let (_folder, path) = wallet_path();
    let error = Wallet::create(&path, &secret(""), KeystoreStrength::Light).unwrap_err();
    assert_eq!(error.code(), "EMPTY_PASSPHRASE");
}

#[test]
fn a_wallet_signs_for_its_account_and_never_prints_its_key() {
    let wallet = Wallet::from_key(&secret(&format!("0x{SECRET}"))).unwrap();
    let signature = wallet.sign_typed_data([7; 32]).unwrap();
    verify_wallet([7; 32], &signature, wallet.address()).unwrap();
    assert!(verify_wallet([8; 32], &signature, wallet.address()).is_err());
    assert_eq!(
        signature,
        wallet.sign_typed_data([7; 32]).unwrap(),
        "RFC 6979: signatures are deterministic"
    );
    let printed = format!("{wallet:?} {:?}", wallet.node_signer());
    assert!(!printed.to_lowercase().contains(&SECRET[..16]), "{printed}");
}

#[test]
fn the_node_key_of_a_wallet_never_changes() {
    // A change of this value would disconnect every wallet from its registered node key.
    let wallet = Wallet::from_key(&secret(SECRET)).unwrap();
    let bytes = Wallet::from_key(&secret(SECRET)).unwrap().derive_secret(NODE_KEY_CONTEXT);
    assert_eq!(NodeSigner::from_seed(&bytes).key(), wallet.node_signer().key());
    assert_eq!(
        wallet.node_signer().key().to_string(),
        "3e431bbf9eb6f2d3f0a56f112891291d74a6f017bf2707f241c69cf3dfddc451"
    );
}
