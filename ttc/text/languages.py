"""How languages say that something is the answer: a table, read by `ttc.text.statements`.

The words are those of multilingual benchmarks and what models write around them, in small letters;
`Answer` and `ANSWER` are found by `answer`.
"""

from __future__ import annotations

from dataclasses import dataclass

LATIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, eq=False)
class Language:
    """Words of one language, parted by `|`.

    code: ISO 639-1.
    answer: nouns for an answer, without patterns. A text without any of them states nothing here.
    option: nouns for one of several choices.
    link: what stands between the noun and the answer. A colon or = always may.
    bare: whether nothing need stand between, as where the verb comes last.
    hedge: what may stand behind the link: adverbs, doubts, articles.
    right: what follows a choice that is claimed to be right. choose: what stands before it.
    wrong: what follows a choice that is said to be wrong.
    denied: what stands before a noun of which nothing is stated (another, a wrong answer).
    ends: where a sentence goes on without its answer (because, when).
    letters: series of the script's own choice letters, in the order of A, B, C; _ for none.
    decimal_comma: whether 2,5 is two and a half, and 1.234 more than a thousand.
    common: frequent words, which tell texts with decimal commas from others.
    """

    code: str
    answer: str
    option: str = ""
    link: str = ""
    bare: bool = False
    hedge: str = ""
    right: str = ""
    choose: str = ""
    wrong: str = ""
    denied: str = ""
    ends: str = ""
    letters: tuple[str, ...] = ()
    decimal_comma: bool = False
    common: str = ""


_ARABIC = ("أبجدهوزحطي", "ابجدهوزحطي")
_CYRILLIC = ("АВС_Е", "АБВГДЕЖЗИК", "абвгдежзик")
"""Letters that look like A, B, C come first: the problem shows Latin ones."""
_DEVANAGARI = ("कखगघङ", "अबसद", "अबकड")
_CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩"

ENGLISH = Language(
    "en",
    "answer|solution|final result",
    option="option|choice|letter|alternative",
    link=(
        r"is|are|was|'s|equals|becomes|comes\s++(?:out\s++)?to"
        r"|(?:should|would|must|will|could|may|might|can\s++only|has\s++to|have\s++to|ought\s++to"
        r"|(?:seems|appears|turns\s++out|works\s++out|proves)\s++to)"
        r"(?:\s++(?:therefore|thus|then|hence|also|indeed|clearly))?\s++be"
    ),
    hedge=(
        "clearly|therefore|thus|then|hence|so|most|likely|probably|possibly|perhaps|about|around"
        "|approximately|approx|roughly|nearly|exactly|precisely|simply|just|indeed|obviously"
        "|definitely|certainly|actually|also|still|only|now|again|equal to|given by|found to be"
        "|going to be|the|an|option|choice|letter|answer|number(?! of)|of course|in fact|as follows"
        "|i think|i believe"
    ),
    right=(
        r"(?:is|was|'s|seems|appears|must\s++be|should\s++be|would\s++be|has\s++to\s++be|looks)\s++"
        r"(?:(?:clearly|therefore|thus|indeed|also|most\s++likely|probably|definitely|obviously"
        r"|to\s++be)\s++){0,2}+(?:the\s++)?+(?:only\s++)?+(?:most\s++)?+"
        r"(?:(?:correct|right|best|accurate|appropriate|intended)\b"
        r"|(?:answer|solution)\b(?!\s++to\s++a))"
        r"|is\s++the\s++only\s++(?:option|choice|one|statement|answer)\b"
        r"|(?:survives|remains|is\s++left|it\s++is)(?=\s*+(?:[.,;:!)]|$))"
    ),
    choose=(
        r"(?:choose|pick|select|chose|go\s++(?:with|for)|going\s++with|settle\s++(?:on|for)"
        r"|opt\s++for|conclude\s++(?:that\s++it\s++is|with)|leaves(?:\s++us\s++with)?|vote\s++for"
        r"|mark|(?:i'd|i\s++would)\s++say|best\s++(?:fits|matches)\s++is|(?:fits|works|matches)\s++best\s++is|best\s++(?:fit|match|choice)\s++is|(?:it|this)\s++(?:is|must\s++be|should\s++be|has\s++to\s++be)|(?<!not\s)only)"
        r"(?:\s++(?:option|choice|letter|answer))?+"
    ),
    wrong=(
        r"(?:is|are|was|were|seems|would\s++be|looks|can\s++be|cannot\s++be|can't\s++be|isn't)\s++"
        r"(?:(?:also|clearly|obviously|simply|tempting|plausible|close|but|therefore)\s++){0,3}+"
        r"(?:wrong|incorrect|false|untrue|not|ruled\s++out|excluded|eliminated|a\s++distractor)\b"
        r"|(?:cannot|can't|isn't|fails|fail|confuses|does\s++not|doesn't)\b"
    ),
    denied=(
        "incorrect|wrong|another|other|others|alternative|if|whether|suppose|assume|assuming|unless"
        "|no|each|every|any|false|mistaken|tempting|isn't|not|previous|earlier|initial|sample"
    ),
    ends=(
        "because|since|as|when|whenever|where|found|which|from|if|given|provided|but|not"
        "|obtained|that"
    ),
    common="the|of|is|and|to|are|in|so|each|for|she|he|has|that|we|it|they|with|per|answer",
)

OF = "of|de|des|du|von|di|van|av|af|из|от|z|dari"
"""What stands between a share and the whole: 20% of 150."""

DOZEN = "dozens?|docenas?|dúzias?|douzaines?|dutzend|Dutzend|dozzin[ae]|dozijn|дюжин[аы]?"
RESTATES = (
    r"which\s(?:is|are|equals|makes|gives|comes\sto)|that\s(?:is|makes)|i\.\s?e\.|or|soit"
    r"|c'est-à-dire|es\sdecir|o\ssea|ou\sseja|isto\sé|das\s(?:ist|sind|macht)|also|d\.\s?h\.|cioè|ossia"
    r"|czyli|то\sесть|т\.\s?е\.|dus|yani|yaitu"
)
"""What stands before the result of the sum that was stated: 20% of 150, which is 30."""

LANGUAGES = (
    ENGLISH,
    Language(
        "ar",
        "إجابة|اجابة|إجابه|جواب|الحل",
        option="الخيار|خيار|الاختيار|الحرف|البديل",
        link="هي|هو|تكون|يكون|ستكون",
        hedge=(
            "إذن|إذًا|بالتأكيد|تقريبا|تقريبًا|حوالي|الخيار|خيار|الاختيار|الحرف|رقم|بوضوح|على الأرجح"
        ),
        right="(?:هو|هي) (?:الإجابة|الجواب|الخيار|الصحيح|الصحيحة)|صحيح|صحيحة",
        choose="نختار|أختار|اخترت|اختر",
        wrong="خاطئ|خاطئة|خطأ|غير صحيح|غير صحيحة",
        denied="خاطئة|أخرى|لو|إذا كانت|ليست",
        ends="لأن|حيث|عندما|أي",
        letters=_ARABIC,
    ),
    Language(
        "bn",
        "উত্তর|সমাধান",
        option="বিকল্প|অপশন",
        link="হল|হলো|হচ্ছে|হবে|হয়",
        bare=True,
        hedge="বিকল্প|অপশন|প্রায়|স্পষ্টতই|তাই|অতএব|সম্ভবত",
        right="সঠিক|(?:হল|হলো) সঠিক",
        wrong="ভুল|সঠিক নয়",
        denied="ভুল|অন্য|আরেকটি",
        ends="কারণ|যেহেতু",
        letters=("কখগঘঙ", "অবডঢ"),
    ),
    Language(
        "de",
        "antwort|lösung|loesung|antwortmöglichkeit|endergebnis",
        option="option|auswahl|möglichkeit|buchstabe|antwortoption",
        link="ist|lautet|wäre|sind|beträgt|muss|sollte|dürfte|scheint",
        hedge=(
            "also|daher|somit|eindeutig|klar|wahrscheinlich|vermutlich|ungefähr|etwa|rund|circa|ca"
            "|genau|option|antwort|buchstabe|die|der|das|demnach|sein|zu sein"
        ),
        right=(
            "ist (?:also |daher |somit |eindeutig )?(?:die |der )?(?:richtig"
            "|korrekt)|stimmt|richtig|korrekt"
        ),
        choose="wähle|wählen|entscheide mich für|nehme",
        wrong="(?:ist|sind|wäre) (?:auch |also )?(?:falsch|nicht|inkorrekt|unzutreffend)|scheidet",
        denied="falsche|falschen|andere|weitere|wenn|falls|ob|keine|eine falsche",
        ends="weil|denn|da|wenn|also|das heißt|d\\.h\\.",
        decimal_comma=True,
        common=(
            "der|die|das|und|ist|sind|nicht|also|ein|eine|von|mit|für|pro|wir|er|sie|kostet|wiegt"
            "|zusammen|insgesamt|bleiben|beträgt|stunden|minuten|liter|meter|kilo|hat|antwort|euro|es|man|jeder|jede|den|dem|im"
        ),
    ),
    Language(
        "es",
        "respuesta|solución|solucion|resultado final",
        option="opción|alternativa|letra|inciso",
        link="es|son|sería|será|debe ser|debería ser|tiene que ser|parece ser|resulta ser",
        hedge=(
            "por tanto|por lo tanto|entonces|así|claramente|probablemente|aproximadamente|unos|unas"
            "|casi|exactamente|la|el|opción|alternativa|letra|pues|evidentemente|sin duda"
        ),
        right=(
            "es (?:claramente )?(?:la |el )?(?:opción |respuesta |alternativa )?(?:correcta"
            "|correcto)"
        ),
        choose="elijo|elegimos|escojo|escogemos|selecciono|seleccionamos|me quedo con",
        wrong="(?:es|son|está) (?:también )?(?:incorrect|fals|erróne|equivocad)|no ",
        denied="incorrecta|incorrectas|otra|otras|si la|si|errónea|falsa|ninguna",
        ends="porque|ya que|pues|cuando|es decir|o sea|puesto que|si|dado que|que",
        decimal_comma=True,
        common=(
            "el|la|los|las|es|son|de|que|por|un|una|en|y|cada|tiene|total|respuesta|entonces|con"
            "|cuesta|pesa|su|al|del|le|se|horas|minutos|litros|metros|euros|kilos|pesos|tarda|mide"
        ),
    ),
    Language(
        "fr",
        "réponse|reponse|solution|résultat final",
        option="option|choix|lettre|proposition|alternative",
        link="est|sont|serait|sera|doit être|devrait être|semble être|vaut",
        hedge=(
            "donc|alors|ainsi|clairement|probablement|environ|à peu près|exactement|la|le|l'option"
            "|l’option|option|réponse|lettre|proposition|bien|évidemment|sans doute|de"
        ),
        right=(
            "est (?:donc |bien |clairement )?(?:la |le )?(?:bonne |seule )?"
            "(?:réponse |option )?(?:correcte?|juste|exacte?|bonne)|est la bonne"
        ),
        choose="choisis|choisissons|retiens|retenons|sélectionne|opte pour",
        wrong="(?:est|sont|serait) (?:aussi )?(?:incorrect|fau|inexact|erron)|ne ",
        denied="mauvaise|mauvaises|autre|autres|si la|si|fausse|incorrecte|aucune",
        ends="car|parce que|puisque|quand|lorsque|soit|c'est-à-dire|c’est-à-dire|si|qui",
        decimal_comma=True,
        common=(
            "le|la|les|est|et|de|des|un|une|par|il|elle|donc|pour|réponse|reste|coûte|pèse|au|du"
            "|en|a|on|chaque|sont|dans|heures|mètres|litres|kilos|euros|mesure"
        ),
    ),
    Language(
        "hi",
        "उत्तर|जवाब|हल",
        option="विकल्प",
        link="है|होगा|हैं|था",
        bare=True,
        hedge="विकल्प|लगभग|स्पष्ट रूप से|इसलिए|अतः|शायद|संभवतः|करीब",
        right="सही (?:है|उत्तर|विकल्प)",
        wrong="(?:गलत|ग़लत|सही नहीं)",
        denied="गलत|ग़लत|अन्य|दूसरा|यदि|अगर",
        ends="क्योंकि|चूंकि|जब|यानी",
        letters=_DEVANAGARI,
    ),
    Language(
        "id",
        "jawaban|jawabannya|penyelesaian",
        option="opsi|pilihan|huruf",
        link="adalah|yaitu|ialah|seharusnya|menjadi",
        bare=True,
        hedge="opsi|pilihan|huruf|sekitar|kira-kira|jelas|mungkin|tepatnya|kemungkinan besar",
        right="(?:adalah )?(?:yang |jawaban yang |pilihan yang )?(?:benar|tepat)",
        choose="memilih|pilih",
        wrong="(?:adalah )?(?:salah|tidak|keliru)",
        denied="salah|lain|lainnya|jika|bukan",
        ends="karena|sebab|ketika|yaitu|jika",
        decimal_comma=True,
        common="adalah|dan|dari|yang|jawaban|ada|total|untuk|setiap|jadi|harga|ke|di|dengan|rp",
    ),
    Language(
        "it",
        "risposta|soluzione|risultato finale",
        option="opzione|alternativa|lettera|scelta",
        link="è|sono|sarebbe|sarà|deve essere|dovrebbe essere|e'",
        hedge=(
            "quindi|dunque|allora|chiaramente|probabilmente|circa|esattamente|la|il|l'opzione"
            "|l’opzione|opzione|lettera|perciò|pari a"
        ),
        right=(
            "è (?:quindi |chiaramente )?(?:la |l')?(?:risposta |opzione )?"
            "(?:corrett[ao]|giust[ao]|esatt[ao])"
        ),
        choose="scelgo|scegliamo|seleziono",
        wrong="(?:è|sono) (?:anche )?(?:errat|sbagliat|fals|scorrett)|non ",
        denied="sbagliata|sbagliate|errata|errate|altra|altre|se la|se|nessuna",
        ends="perché|poiché|quando|cioè|ovvero|se|dato che|ossia",
        decimal_comma=True,
        common="il|la|le|è|di|che|un|una|per|e|ha|risposta|quindi|ogni|costa|pesa|del|gli|in|sono|ore|minuti|metri|litri|chili|misura",
    ),
    Language(
        "ja",
        "答え|答|正解|正答|解答|回答|こたえ",
        option="選択肢|選択|番号",
        link="は|が|として|としては|というのは",
        bare=True,
        hedge="、|選択肢|記号|およそ|約|したがって|明らかに|おそらく|たぶん|つまり",
        right="が(?:正解|正しい|答え|適切|最も適切|正答|当てはまる)|を選(?:ぶ|び|択)|です。?$",
        wrong="は(?:誤り|間違|不正解|正しくない|違う|不適切)",
        denied="不|誤った|間違った|別の|他の|もし|仮に",
        ends="なぜなら|ので|から|ため|つまり|すなわち",
        letters=("アイウエオカキクケコ", _CIRCLED),
    ),
    Language(
        "ko",
        "정답|답변|답|해답",
        option="선택지|보기|선지|옵션",
        link="은|는|이|으로는",
        bare=True,
        hedge="약|대략|따라서|선택지|보기|옵션|분명히|아마|번호|바로",
        right="(?:가|이) (?:정답|맞|옳|올바른|적절)|번이 정답|를 선택|을 선택|를 고|을 고",
        wrong="(?:는|은|가|이) (?:틀|오답|옳지|맞지|아니|잘못)",
        denied="오|틀린|다른|잘못된|만약",
        ends="왜냐하면|때문에|이므로|즉",
        letters=("가나다라마", "ㄱㄴㄷㄹㅁ", _CIRCLED),
    ),
    Language(
        "pt",
        "resposta|solução|gabarito|resultado final",
        option="opção|alternativa|letra|item",
        link="é|são|seria|será|deve ser|deveria ser|parece ser",
        hedge=(
            "portanto|então|assim|claramente|provavelmente|aproximadamente|cerca de|exatamente|a|o"
            "|opção|alternativa|letra|de"
        ),
        right=(
            "(?:é|está) (?:claramente )?(?:a |o )?(?:opção |resposta "
            "|alternativa )?(?:corret[ao]|cert[ao])"
        ),
        choose="escolho|escolhemos|seleciono|marco|fico com",
        wrong="(?:é|são|está|estão) (?:também )?(?:incorret|fals|errad)|não ",
        denied="errada|erradas|incorreta|incorretas|outra|outras|se a|se|falsa|nenhuma",
        ends="porque|pois|quando|já que|ou seja|isto é|se|que",
        decimal_comma=True,
        common=(
            "o|os|as|é|são|de|que|por|um|uma|em|e|cada|tem|total|resposta|então|com|custa|não"
            "|da|do|ao|pesa|horas|minutos|litros|metros|reais|quilos|mede"
        ),
    ),
    Language(
        "sw",
        "jibu|majibu|suluhisho",
        option="chaguo|herufi",
        link="ni|litakuwa|sahihi ni|la mwisho ni",
        hedge="chaguo|herufi|takriban|kama|hivyo|labda|kwa hiyo|wazi",
        right="ni (?:jibu |chaguo )?(?:sahihi|lililo sahihi)|ndilo jibu|ndiyo sahihi",
        choose="nachagua|tunachagua|chagua",
        wrong="(?:si|sio) (?:sahihi)|ni (?:makosa|kosa)|si ",
        denied="lisilo sahihi|lingine|ikiwa|kama",
        ends="kwa sababu|kwani|yaani|wakati",
    ),
    Language(
        "yo",
        "ìdáhùn|idáhùn|idahun|àdáhùn|ìdáhun|èsì|àmọ̀nà|ànúgọ|àṣàyàn",
        option="àṣàyàn|aṣayan",
        link="ni|jẹ́|jẹ|náà ni|tó tọ́ ni|tí ó tọ́ ni",
        hedge="àṣàyàn|aṣayan|lẹ́tà|bí|nǹkan bí",
        right="ni (?:ìdáhùn|ó tọ́|tó tọ́)|ló tọ́",
        wrong="kò tọ́|kì í ṣe",
        denied="kò|mìíràn",
        ends="nítorí|torí pé|nítorí pé",
    ),
    Language(
        "zh",
        "答案|答复|答覆|答曰|正解|答|正确选项|正確選項",
        option="选项|選項|选择|選擇|选|選",
        link="应该是|應該是|应为|應為|应当是|是|为|為|选|選|就是|即|等于|等於",
        bare=True,
        hedge="选项|選項|大约|大約|约|約|选|選|显然|顯然|明显|可能|很可能|大概|因此|所以|应该|應該|，|就是|的",
        right="(?:选项|項)?(?:是|为|為)?(?:最)?(?:正确|正確|对的|對的)(?!吗)|符合题意|符合題意|正确",
        choose="(?:故|应|應|因此|所以|则|則|本题|本題|答案)?(?:选择|選擇|选|選)(?:项|項)?",
        wrong="(?:项|項|选项|選項)?(?:都|均|全|也|皆)?(?:是)?(?:错|錯|误|誤|不)",
        denied="错误|錯誤|错误的|错的|其他|其它|另一个|另一個|如果|假如|若|不正确的|不|参考|回",
        ends="因为|因為|由于|即|也就是|当|當|其中",
        letters=("甲乙丙丁戊", _CIRCLED),
    ),
    Language(
        "ru",
        "ответ|решение|ответом",
        option="вариант|варианта|буква|пункт",
        link="—|–|-|является|будет|должен быть|равен|это|есть|составляет",
        hedge=(
            "таким образом|следовательно|очевидно|вероятно|скорее всего|примерно|около"
            "|приблизительно|ровно|вариант|буква|под буквой|это|значит|пункт"
        ),
        right="(?:является |— |- )?(?:правильн|верн)(?:ый|ая|ым|ое|о|ен)",
        choose=(
            "верен только|правилен только|выбираю|выбираем|выберу|выбрать"
            "|(?:правильным|верным)(?: ответом| вариантом)? является"
        ),
        wrong="(?:— |является |- )?(?:неверн|неправильн|ошибочн|не )",
        denied="неправильный|неверный|другой|неправильные|неверные|если|ошибочный",
        ends="так как|потому что|поскольку|когда|то есть|т\\.е\\.|ведь|при",
        letters=_CYRILLIC,
        decimal_comma=True,
        common=(
            "и|в|на|это|ответ|всего|из|по|с|за|у|осталось|стоит|весит|итого|рублей|он|она"
            "|каждый|не|значит"
        ),
    ),
    Language(
        "te",
        "సమాధానం|జవాబు|సమాధానము",
        option="ఎంపిక|ఆప్షన్",
        link="ఏమిటంటే|అంటే|అవుతుంది",
        bare=True,
        hedge="ఎంపిక|ఆప్షన్|సుమారు|కాబట్టి|దాదాపు",
        right="సరైనది|సరైన సమాధానం|సరైన",
        wrong="తప్పు|సరికాదు",
        denied="తప్పు|మరొక|వేరే",
        ends="ఎందుకంటే|కాబట్టి",
    ),
    Language(
        "th",
        "คำตอบ|เฉลย|ตอบ",
        option="ตัวเลือก|ข้อ",
        link="คือ|ได้แก่|เป็น|ที่ถูกต้องคือ|ที่ถูกคือ|น่าจะเป็น|จึงเป็น|จึงคือ|สุดท้ายคือ",
        bare=True,
        hedge="ตัวเลือก|ข้อ|ประมาณ|ดังนั้น|น่าจะ|ที่|ว่า",
        right="(?:จึง)?(?:เป็นคำตอบ)?(?:ที่)?ถูกต้อง|ถูก",
        choose="เลือก|เลือกข้อ",
        wrong="(?:นั้น)?(?:ผิด|ไม่)",
        denied="ไม่ใช่|ที่ผิด|ถ้า|หาก",
        ends="เพราะ|เนื่องจาก|ซึ่ง",
        letters=("กขคงจ",),
    ),
    Language(
        "vi",
        "đáp án|câu trả lời|trả lời|đáp số",
        option="lựa chọn|phương án|chữ cái",
        link="là|sẽ là|phải là|chính là|bằng",
        bare=True,
        hedge="đúng|khoảng|phương án|lựa chọn|do đó|rõ ràng|có lẽ|đáp án|gần|xấp xỉ|chọn",
        right="(?:là )?(?:đáp án |phương án |câu |lựa chọn )?đúng",
        choose="chọn|ta chọn|tôi chọn",
        wrong="(?:là )?(?:sai|không)",
        denied="sai|khác|nếu|không phải",
        ends="vì|bởi vì|khi|tức là|do",
        decimal_comma=True,
        common=(
            "là|và|có|của|đáp|án|mỗi|nên|vậy|được|số|tổng|cộng|trả|lời|nặng|giá|đồng|ngày|cái"
            "|khoảng"
        ),
    ),
    Language(
        "tr",
        "cevap|yanıt|cevabı|yanıtı|cevabımız|çözüm",
        option="seçenek|şık|harf",
        link="şudur|budur|olur|olarak|olmalıdır|ise",
        bare=True,
        hedge="seçenek|şık|yaklaşık|kesinlikle|muhtemelen|tam|açıkça|bu nedenle|dolayısıyla|doğru",
        right="(?:seçeneği |şıkkı )?(?:doğru|doğrudur)",
        choose="seçiyorum|seçiyoruz",
        wrong="(?:seçeneği |şıkkı )?(?:yanlış|hatalı|doğru değil)",
        denied="yanlış|başka|diğer|eğer|hatalı",
        ends="çünkü|zira|yani",
        decimal_comma=True,
        common="ve|bir|bu|toplam|cevap|için|her|tane|ile|olur|kaldı|lira|kilo|var",
    ),
    Language(
        "nl",
        "antwoord|oplossing",
        option="optie|keuze|letter|antwoordoptie",
        link="is|luidt|zou|moet|zijn|lijkt",
        hedge="dus|daarom|duidelijk|waarschijnlijk|ongeveer|circa|precies|optie|de|het|zijn|bijna",
        right="is (?:dus |duidelijk )?(?:de |het )?(?:juist|correct|goed)",
        choose="kies|kiezen|kies voor|kiezen voor|ga voor",
        wrong="(?:is|zijn) (?:ook )?(?:fout|onjuist|niet|verkeerd)",
        denied="foute|onjuiste|ander|andere|als|verkeerde",
        ends="omdat|want|aangezien|als|dat wil zeggen",
        decimal_comma=True,
        common="de|het|een|en|van|dus|per|zijn|antwoord|voor|kost|weegt|elke|heeft|is|euro|blijven",
    ),
    Language(
        "pl",
        "odpowiedź|odpowiedz|odpowiedzią|rozwiązanie|rozwiązaniem",
        option="opcja|opcją|wariant|litera",
        link="to|jest|brzmi|wynosi|będzie|powinna być",
        hedge="więc|zatem|około|prawdopodobnie|dokładnie|oczywiście|opcja|litera|wyraźnie|to",
        right="(?:to |jest )?(?:poprawn|prawidłow|właściw)",
        choose="wybieram|wybieramy",
        wrong="(?:jest |są )?(?:błędn|niepoprawn|nieprawidłow|fałszyw|nie )",
        denied="błędna|błędne|inna|inne|jeśli|niepoprawna|nieprawidłowa",
        ends="ponieważ|bo|gdyż|gdy|czyli|jeśli",
        decimal_comma=True,
        common="jest|i|w|na|to|z|odpowiedź|więc|razem|każdy|ma|kosztuje|waży|zł|za|do|się|że",
    ),
    Language(
        "cs",
        "odpověď|odpovědí|řešení",
        option="možnost|varianta|písmeno",
        link="je|zní|bude|by měla být|jsou",
        hedge="tedy|proto|přibližně|asi|pravděpodobně|přesně|možnost|varianta|jasně",
        right="je (?:tedy )?(?:správn|správně)",
        choose="vybírám|volím",
        wrong="(?:je|jsou) (?:nesprávn|chybn|špatn)|není",
        denied="nesprávná|špatná|jiná|další|pokud|chybná",
        ends="protože|neboť|když|tj\\.|pokud",
        decimal_comma=True,
        common="je|a|v|na|to|odpověď|tedy|celkem|každý|má|stojí|váží|za|se|kč|jsou|že",
    ),
    Language(
        "uk",
        "відповідь|відповіддю|розв'язок",
        option="варіант|літера",
        link="—|–|-|є|буде|це|дорівнює|має бути|становить",
        hedge="отже|приблизно|близько|ймовірно|очевидно|варіант|літера|рівно|це",
        right="(?:є |— )?(?:правильн|вірн)",
        choose="обираю|обираємо|вибираю",
        wrong="(?:є |— )?(?:неправильн|невірн|хибн|не )",
        denied="неправильна|невірна|інша|якщо|неправильні",
        ends="тому що|оскільки|бо|коли|тобто",
        letters=_CYRILLIC,
        decimal_comma=True,
        common="і|в|на|це|відповідь|всього|з|по|за|у|залишилось|коштує|важить|разом|гривень|не|та",
    ),
    Language(
        "el",
        "απάντηση|λύση|απάντησή",
        option="επιλογή|γράμμα",
        link="είναι|ισούται με|θα είναι|πρέπει να είναι",
        hedge="η|το|επιλογή|περίπου|άρα|λοιπόν|πιθανώς|σαφώς|ακριβώς",
        right="είναι (?:η |το )?(?:σωστ|ορθ)",
        choose="επιλέγω|επιλέγουμε|διαλέγω",
        wrong="είναι (?:λάθος|λανθασμέν|εσφαλμέν)|δεν ",
        denied="λάθος|λανθασμένη|άλλη|αν",
        ends="επειδή|γιατί|διότι|όταν|δηλαδή|αφού",
        letters=("ΑΒΓΔΕ", "αβγδε"),
        decimal_comma=True,
        common="είναι|και|το|η|απάντηση|του|της|σε|με|για|κάθε|συνολικά|κοστίζει|ευρώ|άρα",
    ),
    Language(
        "he",
        "תשובה|התשובה|פתרון|הפתרון",
        option="אפשרות|האפשרות|אות",
        link="היא|הוא|הינה|תהיה|צריכה להיות",
        hedge="אפשרות|בערך|לכן|כנראה|בוודאי|בדיוק|האפשרות|כ",
        right="(?:היא |הוא )?(?:הנכונה|נכונה|התשובה הנכונה)|נכון",
        choose="בוחר|בוחרת|נבחר|אבחר",
        wrong="(?:היא |הוא )?(?:שגויה|שגוי|לא נכונה|אינה|לא )",
        denied="שגויה|אחרת|אם",
        ends="כי|מכיוון|משום|כאשר|כלומר",
        letters=("אבגדהוזחטי",),
    ),
    Language(
        "fa",
        "پاسخ|جواب",
        option="گزینه|گزینهٔ|حرف",
        link="برابر است با|می‌شود|عبارت است از|برابر",
        bare=True,
        hedge="صحیح|درست|نهایی|گزینه|گزینهٔ|گزینه‌ی|حدود|تقریبا|تقریباً|بنابراین|احتمالا|همان",
        right="(?:درست|صحیح) است|پاسخ (?:درست|صحیح) است|درست|صحیح",
        choose="انتخاب",
        wrong="(?:نادرست|غلط|اشتباه)",
        denied="نادرست|دیگر|اگر|غلط",
        ends="زیرا|چون|یعنی|وقتی",
        letters=("_بجد", "ابجد"),
    ),
    Language(
        "ur",
        "جواب",
        option="آپشن|اختیار|انتخاب",
        link="ہے|ہوگا",
        bare=True,
        hedge="آپشن|تقریباً|لہذا|شاید",
        right="(?:درست|صحیح)",
        wrong="(?:غلط)",
        denied="غلط|دوسرا|اگر",
        ends="کیونکہ|یعنی",
        letters=("_بجد",),
    ),
    Language(
        "ta",
        "பதில்|விடை",
        option="விருப்பம்|தேர்வு",
        link="என்பது|ஆகும்",
        bare=True,
        hedge="விருப்பம்|சுமார்|எனவே|தோராயமாக",
        right="(?:சரியானது|சரி|சரியான)",
        wrong="(?:தவறு|தவறானது)",
        denied="தவறான|மற்றொரு|வேறு",
        ends="ஏனெனில்|ஏனென்றால்",
        letters=("அஆஇஈஉ",),
    ),
    Language(
        "mr",
        "उत्तर",
        option="पर्याय",
        link="आहे|असेल|आहेत",
        bare=True,
        hedge="पर्याय|अंदाजे|म्हणून|सुमारे",
        right="(?:बरोबर|योग्य)",
        wrong="(?:चूक|चुकीच|अयोग्य)",
        denied="चुकीचे|दुसरे|जर|चूक",
        ends="कारण|म्हणजे",
        letters=_DEVANAGARI,
    ),
    Language(
        "ne",
        "उत्तर|जवाफ",
        option="विकल्प",
        link="हो|हुन्छ|छ",
        bare=True,
        hedge="विकल्प|लगभग|त्यसैले",
        right="(?:सही)",
        wrong="(?:गलत)",
        denied="गलत|अर्को|यदि",
        ends="किनभने|किनकि",
        letters=_DEVANAGARI,
    ),
    Language(
        "ro",
        "răspunsul|răspuns|raspunsul|raspuns|soluția",
        option="varianta|opțiunea|litera",
        link="este|e|sunt|ar fi|trebuie să fie|va fi",
        hedge="deci|așadar|clar|probabil|aproximativ|circa|exact|varianta|opțiunea|litera",
        right="este (?:deci )?(?:răspunsul |varianta )?(?:corect|corectă|bun)",
        choose="aleg|alegem",
        wrong="(?:este|sunt) (?:incorect|greșit|fals)|nu ",
        denied="greșit|alt|dacă|incorect|un alt",
        ends="deoarece|pentru că|când|adică|fiindcă|dacă",
        decimal_comma=True,
        common="este|și|de|răspunsul|deci|un|o|la|pe|fiecare|are|costă|cu|din|lei|sunt|în",
    ),
    Language(
        "sv",
        "svaret|svar|lösningen",
        option="alternativ|alternativet|bokstaven",
        link="är|blir|borde vara|måste vara|lyder",
        hedge="alltså|därför|ungefär|cirka|troligen|tydligt|exakt|alternativ|alternativet|således",
        right="är (?:alltså )?(?:det )?(?:rätt|korrekt)",
        choose="väljer",
        wrong="är (?:också )?(?:fel|inkorrekt|felaktig|inte)",
        denied="fel|annat|om|felaktigt|andra",
        ends="eftersom|för att|därför att|när|dvs|det vill säga",
        decimal_comma=True,
        common="är|och|det|en|ett|svaret|alltså|varje|har|kostar|väger|av|på|i|kronor|totalt|kvar",
    ),
    Language(
        "da",
        "svaret|svar|løsningen",
        option="mulighed|valgmulighed|bogstav",
        link="er|bliver|må være|lyder",
        hedge="altså|derfor|cirka|omkring|sandsynligvis|tydeligvis|præcis|mulighed|valgmulighed",
        right="er (?:altså )?(?:det )?(?:rigtig|korrekt)",
        choose="vælger",
        wrong="er (?:også )?(?:forkert|ikke|falsk)",
        denied="forkert|andet|hvis|forkerte|andre",
        ends="fordi|da|når|eftersom|dvs",
        decimal_comma=True,
        common="er|og|det|en|et|svaret|altså|hver|har|koster|vejer|af|på|i|kroner|alt",
    ),
    Language(
        "no",
        "svaret|svar|løsningen",
        option="alternativ|valg|bokstav",
        link="er|blir|må være|lyder",
        hedge="altså|derfor|omtrent|cirka|sannsynligvis|tydelig|alternativ|valg",
        right="er (?:altså )?(?:det )?(?:riktig|korrekt)",
        choose="velger",
        wrong="er (?:også )?(?:feil|ikke|gal)",
        denied="feil|annet|hvis|andre",
        ends="fordi|siden|når|ettersom|dvs",
        decimal_comma=True,
        common="er|og|det|en|et|svaret|altså|hver|har|koster|veier|av|på|i|kroner|totalt",
    ),
    Language(
        "fi",
        "vastaus|vastaukseni|ratkaisu",
        option="vaihtoehto|kirjain",
        link="on|olisi|pitäisi olla",
        hedge="siis|noin|todennäköisesti|selvästi|vaihtoehto|täsmälleen|siten",
        right="on (?:siis )?(?:oikea|oikein)",
        choose="valitsen",
        wrong="on (?:myös )?(?:väärä|väärin|virheellinen)|ei ",
        denied="väärä|toinen|jos|muu",
        ends="koska|sillä|kun|eli|jos",
        decimal_comma=True,
        common="on|ja|vastaus|siis|se|että|yhteensä|jokainen|maksaa|painaa|euroa|ovat|jää",
    ),
    Language(
        "hu",
        "válasz|válaszom|megoldás",
        option="lehetőség|opció|betű",
        link="tehát|lesz|az|a|így",
        bare=True,
        hedge="a|az|tehát|körülbelül|valószínűleg|pontosan|nyilván|kb",
        right="(?:a |az )?(?:helyes|jó)",
        choose="választom",
        wrong="(?:hibás|helytelen|rossz|nem )",
        denied="helytelen|rossz|másik|ha|hibás",
        ends="mert|mivel|amikor|azaz|ha",
        decimal_comma=True,
        common="a|az|és|válasz|tehát|van|egy|minden|összesen|kerül|maradt|forint|nem|hogy",
    ),
    Language(
        "ms",
        "jawapan|jawapannya",
        option="pilihan|huruf",
        link="ialah|adalah|iaitu",
        bare=True,
        hedge="pilihan|huruf|kira-kira|lebih kurang|jelas|mungkin",
        right="(?:adalah |ialah )?(?:betul|benar|tepat)",
        choose="memilih|pilih",
        wrong="(?:adalah )?(?:salah|tidak)",
        denied="salah|lain|jika",
        ends="kerana|sebab|apabila|iaitu",
    ),
    Language(
        "tl",
        "sagot|kasagutan",
        option="opsyon|titik|pagpipilian",
        link="ay",
        hedge="opsyon|titik|humigit-kumulang|malinaw na|marahil|ang",
        right="ang (?:tamang|tama)",
        choose="pinipili ko ang|pipiliin ko ang",
        wrong="ay (?:mali|hindi)",
        denied="maling|ibang|kung",
        ends="dahil|sapagkat|kapag|ibig sabihin",
    ),
    Language(
        "ca",
        "resposta|solució",
        option="opció|alternativa|lletra",
        link="és|són|seria|serà|ha de ser",
        hedge="per tant|doncs|clarament|probablement|aproximadament|la|el|l'opció|opció|lletra",
        right="és (?:la )?(?:resposta |opció )?(?:correcta|correcte)",
        choose="trio|escullo",
        wrong="(?:és|són) (?:incorrect|fals|errò)|no ",
        denied="incorrecta|altra|si la|si|errònia",
        ends="perquè|ja que|quan|és a dir|si",
        decimal_comma=True,
        common="el|la|els|les|és|i|de|que|per|un|una|resposta|doncs|cada|té|en",
    ),
    Language(
        "sr",
        "odgovor|одговор|rješenje|rešenje",
        option="opcija|опција|slovo|слово",
        link="je|је|glasi|гласи|bi bio|biće",
        hedge="dakle|дакле|otprilike|отприлике|verovatno|вероватно|opcija|опција|pod|под|oko|око",
        right="je (?:dakle )?(?:tačan|točan|ispravan|tačno)|је (?:тачан|тачно|исправан)",
        choose="biram|бирам|odabirem",
        wrong="(?:je|је) (?:netač|netoč|pogreš|нетач|погреш)|nije|није",
        denied="pogrešan|netačan|drugi|ako|погрешан|други|ако",
        ends="jer|јер|kada|када|zato što|to jest|tj\\.|ako",
        letters=_CYRILLIC,
        decimal_comma=True,
        common="je|i|u|na|odgovor|dakle|ukupno|svaki|ima|košta|od|se|za|su|је|и|одговор|укупно|од",
    ),
    Language(
        "bg",
        "отговорът|отговор|решението",
        option="вариант|буква",
        link="е|са|би бил|трябва да е|ще бъде",
        hedge="значи|следователно|приблизително|около|вероятно|очевидно|вариант|буква",
        right="е (?:правилн|вер)",
        choose="избирам|избираме",
        wrong="(?:е|са) (?:греш|неправилн|невер)|не ",
        denied="грешен|друг|ако|неправилен",
        ends="защото|понеже|когато|тоест|тъй като|ако",
        letters=_CYRILLIC,
        decimal_comma=True,
        common="е|и|на|отговорът|отговор|значи|всеки|има|струва|от|общо|за|с|лева|са|в",
    ),
    Language(
        "af",
        "antwoord",
        option="opsie|keuse",
        link="is|sou|moet",
        hedge="dus|daarom|ongeveer|waarskynlik|opsie|die|presies",
        right="is (?:dus )?(?:die )?(?:korrek|reg)",
        choose="kies",
        wrong="is (?:ook )?(?:verkeerd|nie|foutief)",
        denied="verkeerde|ander|as",
        ends="omdat|want|wanneer|dit wil sê",
        decimal_comma=True,
        common="die|en|is|van|dus|antwoord|elke|het|kos|vir|in|rand|altesaam",
    ),
    Language(
        "zu",
        "impendulo",
        option="inketho",
        link="ithi|ngu|yi|u",
        hedge="inketho|cishe|mhlawumbe",
        denied="engalungile|enye|uma",
        ends="ngoba|ngenxa",
    ),
    Language(
        "wo",
        "tontu",
        option="tànneef",
        link="mooy|la|moo di",
        hedge="tànneef|lu jege",
        denied="beneen|su",
        ends="ndax|ndaxte",
    ),
    Language(
        "gu",
        "જવાબ|ઉત્તર",
        option="વિકલ્પ",
        link="છે|હશે",
        bare=True,
        hedge="વિકલ્પ|આશરે|તેથી",
        right="(?:સાચો|સાચું|યોગ્ય)",
        wrong="(?:ખોટો|ખોટું)",
        denied="ખોટો|બીજો|જો",
        ends="કારણ|કેમ કે",
        letters=("કખગઘ", "અબકડ"),
    ),
    Language(
        "pa",
        "ਜਵਾਬ|ਉੱਤਰ",
        option="ਵਿਕਲਪ",
        link="ਹੈ|ਹੋਵੇਗਾ",
        bare=True,
        hedge="ਵਿਕਲਪ|ਲਗਭਗ|ਇਸ ਲਈ",
        right="(?:ਸਹੀ)",
        wrong="(?:ਗਲਤ|ਗ਼ਲਤ)",
        denied="ਗਲਤ|ਗ਼ਲਤ|ਹੋਰ|ਜੇ",
        ends="ਕਿਉਂਕਿ",
        letters=("ੳਅੲਸ", "ਕਖਗਘ"),
    ),
)
