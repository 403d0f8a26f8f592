"""Principal parts of the verbs: base, third person, past, participle; those of the stem for a separable verb."""

_ENGLISH = """
    sleep sleeps slept slept
    work works worked worked
    laugh laughs laughed laughed
    cry cries cried cried
    dance dances danced danced
    sing sings sang sung
    bark barks barked barked
    play plays played played
    get gets got got
    fall falls fell fallen
    arrive arrives arrived arrived
    come comes came come
    shop shops shopped shopped
    read reads read read
    write writes wrote written
    buy buys bought bought
    eat eats ate eaten
    drink drinks drank drunk
    see sees saw seen
    find finds found found
    look looks looked looked
    love loves loved loved
    visit visits visited visited
    meet meets met met
    know knows knew known
    hear hears heard heard
    carry carries carried carried
    wash washes washed washed
    repair repairs repaired repaired
    sell sells sold sold
    paint paints painted painted
    cook cooks cooked cooked
    forget forgets forgot forgotten
    lose loses lost lost
    need needs needed needed
    take takes took taken
    drive drives drove driven
    understand understands understood understood
    feed feeds fed fed
    open opens opened opened
    close closes closed closed
    call calls called called
    invite invites invited invited
    pick picks picked picked
    throw throws threw thrown
    clean cleans cleaned cleaned
    bring brings brought brought
    help helps helped helped
    thank thanks thanked thanked
    follow follows followed followed
    listen listens listened listened
    answer answers answered answered
    belong belongs belonged belonged
    give gives gave given
    show shows showed shown
    send sends sent sent
    explain explains explained explained
    wait waits waited waited
    think thinks thought thought
    talk talks talked talked
    dream dreams dreamed dreamed
    lie lies lay lain
    sit sits sat sat
    stand stands stood stood
    place places placed placed
    go goes went gone
    run runs ran run
    travel travels traveled traveled
    say says said said
    believe believes believed believed
    hope hopes hoped hoped
    ask asks asked asked
    be is was been
"""

_GERMAN = """
    schlafen schläft schlief geschlafen
    arbeiten arbeitet arbeitete gearbeitet
    lachen lacht lachte gelacht
    weinen weint weinte geweint
    tanzen tanzt tanzte getanzt
    singen singt sang gesungen
    bellen bellt bellte gebellt
    spielen spielt spielte gespielt
    stehen steht stand gestanden
    kommen kommt kam gekommen
    kaufen kauft kaufte gekauft
    lesen liest las gelesen
    schreiben schreibt schrieb geschrieben
    essen isst aß gegessen
    trinken trinkt trank getrunken
    sehen sieht sah gesehen
    finden findet fand gefunden
    suchen sucht suchte gesucht
    lieben liebt liebte geliebt
    besuchen besucht besuchte besucht
    treffen trifft traf getroffen
    kennen kennt kannte gekannt
    hören hört hörte gehört
    tragen trägt trug getragen
    waschen wäscht wusch gewaschen
    reparieren repariert reparierte repariert
    verkaufen verkauft verkaufte verkauft
    malen malt malte gemalt
    kochen kocht kochte gekocht
    vergessen vergisst vergaß vergessen
    verlieren verliert verlor verloren
    brauchen braucht brauchte gebraucht
    nehmen nimmt nahm genommen
    fahren fährt fuhr gefahren
    verstehen versteht verstand verstanden
    füttern füttert fütterte gefüttert
    machen macht machte gemacht
    rufen ruft rief gerufen
    laden lädt lud geladen
    holen holt holte geholt
    ziehen zieht zog gezogen
    werfen wirft warf geworfen
    räumen räumt räumte geräumt
    bringen bringt brachte gebracht
    helfen hilft half geholfen
    danken dankt dankte gedankt
    folgen folgt folgte gefolgt
    antworten antwortet antwortete geantwortet
    gehören gehört gehörte gehört
    geben gibt gab gegeben
    zeigen zeigt zeigte gezeigt
    schicken schickt schickte geschickt
    erklären erklärt erklärte erklärt
    warten wartet wartete gewartet
    denken denkt dachte gedacht
    sprechen spricht sprach gesprochen
    träumen träumt träumte geträumt
    liegen liegt lag gelegen
    sitzen sitzt saß gesessen
    stellen stellt stellte gestellt
    gehen geht ging gegangen
    laufen läuft lief gelaufen
    reisen reist reiste gereist
    sagen sagt sagte gesagt
    glauben glaubt glaubte geglaubt
    hoffen hofft hoffte gehofft
    wissen weiß wusste gewusst
    fragen fragt fragte gefragt
    sein ist war gewesen
"""


def _parse_forms(table: str) -> dict[str, tuple[str, str, str, str]]:
    rows = (line.split() for line in table.strip().splitlines())
    return {base: (base, third, past, participle) for base, third, past, participle in rows}


ENGLISH = _parse_forms(_ENGLISH)
GERMAN = _parse_forms(_GERMAN)
