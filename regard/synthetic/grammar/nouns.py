"""Nouns: English singular and plural, German gender, nominative, genitive and plural; "-" for no plural."""

from regard.synthetic.grammar.lexeme import Noun

_TABLES = {
    "person": """
        man men m Mann Mannes Männer
        woman women f Frau Frau Frauen
        teacher teachers m Lehrer Lehrers Lehrer
        student students m Student Studenten Studenten
        doctor doctors m Arzt Arztes Ärzte
        nurse nurses f Krankenschwester Krankenschwester Krankenschwestern
        farmer farmers m Bauer Bauern Bauern
        policeman policemen m Polizist Polizisten Polizisten
        neighbor neighbors m Nachbar Nachbarn Nachbarn
        friend friends m Freund Freundes Freunde
        colleague colleagues m Kollege Kollegen Kollegen
        actress actresses f Schauspielerin Schauspielerin Schauspielerinnen
        waitress waitresses f Kellnerin Kellnerin Kellnerinnen
        guest guests m Gast Gastes Gäste
        customer customers m Kunde Kunden Kunden
        gardener gardeners m Gärtner Gärtners Gärtner
    """,
    "kin": """
        brother brothers m Bruder Bruders Brüder
        sister sisters f Schwester Schwester Schwestern
        mother mothers f Mutter Mutter Mütter
        father fathers m Vater Vaters Väter
        son sons m Sohn Sohnes Söhne
        daughter daughters f Tochter Tochter Töchter
        uncle uncles m Onkel Onkels Onkel
        aunt aunts f Tante Tante Tanten
        grandmother grandmothers f Großmutter Großmutter Großmütter
    """,
    "youth": """
        child children n Kind Kindes Kinder
        boy boys m Junge Jungen Jungen
        girl girls n Mädchen Mädchens Mädchen
        pupil pupils m Schüler Schülers Schüler
    """,
    "pet": """
        dog dogs m Hund Hundes Hunde
        cat cats f Katze Katze Katzen
        rabbit rabbits n Kaninchen Kaninchens Kaninchen
        bird birds m Vogel Vogels Vögel
    """,
    "farm": """
        horse horses n Pferd Pferdes Pferde
        cow cows f Kuh Kuh Kühe
        pig pigs n Schwein Schweins Schweine
    """,
    "wild": """
        lion lions m Löwe Löwen Löwen
        wolf wolves m Wolf Wolfes Wölfe
    """,
    "food": """
        apple apples m Apfel Apfels Äpfel
        banana bananas f Banane Banane Bananen
        egg eggs n Ei Eis Eier
        cake cakes m Kuchen Kuchens Kuchen
        potato potatoes f Kartoffel Kartoffel Kartoffeln
        tomato tomatoes f Tomate Tomate Tomaten
        cookie cookies m Keks Kekses Kekse
        soup soups f Suppe Suppe Suppen
    """,
    "mass": """
        bread - n Brot Brotes -
        cheese - m Käse Käses -
        meat - n Fleisch Fleisches -
        salad - m Salat Salats -
    """,
    "drink": """
        water - n Wasser Wassers -
        milk - f Milch Milch -
        coffee - m Kaffee Kaffees -
        tea - m Tee Tees -
        wine - m Wein Weins -
        beer - n Bier Biers -
    """,
    "text": """
        book books n Buch Buches Bücher
        letter letters m Brief Briefes Briefe
        newspaper newspapers f Zeitung Zeitung Zeitungen
        poem poems n Gedicht Gedichts Gedichte
        novel novels m Roman Romans Romane
        story stories f Geschichte Geschichte Geschichten
        report reports m Bericht Berichts Berichte
        postcard postcards f Postkarte Postkarte Postkarten
    """,
    "thing": """
        key keys m Schlüssel Schlüssels Schlüssel
        bag bags f Tasche Tasche Taschen
        ball balls m Ball Balles Bälle
        umbrella umbrellas m Regenschirm Regenschirms Regenschirme
        clock clocks f Uhr Uhr Uhren
        lamp lamps f Lampe Lampe Lampen
        cup cups f Tasse Tasse Tassen
        knife knives n Messer Messers Messer
        picture pictures n Bild Bildes Bilder
        box boxes f Kiste Kiste Kisten
        gift gifts n Geschenk Geschenks Geschenke
        flower flowers f Blume Blume Blumen
        suitcase suitcases m Koffer Koffers Koffer
        bottle bottles f Flasche Flasche Flaschen
        computer computers m Computer Computers Computer
    """,
    "clothing": """
        coat coats m Mantel Mantels Mäntel
        hat hats m Hut Hutes Hüte
        shirt shirts n Hemd Hemdes Hemden
        jacket jackets f Jacke Jacke Jacken
        scarf scarves m Schal Schals Schals
        sweater sweaters m Pullover Pullovers Pullover
    """,
    "vehicle": """
        car cars n Auto Autos Autos
        bus buses m Bus Busses Busse
        train trains m Zug Zuges Züge
        bicycle bicycles n Fahrrad Fahrrads Fahrräder
        ship ships n Schiff Schiffes Schiffe
    """,
    "furniture": """
        table tables m Tisch Tisches Tische
        chair chairs m Stuhl Stuhls Stühle
        bed beds n Bett Bettes Betten
        sofa sofas n Sofa Sofas Sofas
        bench benches f Bank Bank Bänke
        cupboard cupboards m Schrank Schranks Schränke
    """,
    "opening": """
        door doors f Tür Tür Türen
        window windows n Fenster Fensters Fenster
    """,
    "building": """
        house houses n Haus Hauses Häuser
        school schools f Schule Schule Schulen
        church churches f Kirche Kirche Kirchen
        museum museums n Museum Museums Museen
        library libraries f Bibliothek Bibliothek Bibliotheken
        restaurant restaurants n Restaurant Restaurants Restaurants
        hotel hotels n Hotel Hotels Hotels
        castle castles n Schloss Schlosses Schlösser
    """,
    "room": """
        kitchen kitchens f Küche Küche Küchen
        room rooms n Zimmer Zimmers Zimmer
        office offices n Büro Büros Büros
    """,
    "nature": """
        park parks m Park Parks Parks
        garden gardens m Garten Gartens Gärten
        forest forests m Wald Waldes Wälder
        beach beaches m Strand Strandes Strände
        lake lakes m See Sees Seen
        meadow meadows f Wiese Wiese Wiesen
    """,
    "town": """
        city cities f Stadt Stadt Städte
        village villages n Dorf Dorfes Dörfer
        station stations m Bahnhof Bahnhofs Bahnhöfe
        market markets m Markt Marktes Märkte
        street streets f Straße Straße Straßen
        bridge bridges f Brücke Brücke Brücken
    """,
    "idea": """
        question questions f Frage Frage Fragen
        answer answers f Antwort Antwort Antworten
        problem problems n Problem Problems Probleme
        idea ideas f Idee Idee Ideen
        plan plans m Plan Plans Pläne
    """,
    "work": """
        film films m Film Films Filme
        joke jokes m Witz Witzes Witze
    """,
}


def _parse_noun(kind: str, line: str) -> Noun:
    english, plural, gender, german, genitive, german_plural = ("" if cell == "-" else cell for cell in line.split())
    return Noun(english, plural, gender, german, genitive, german_plural, kind)


NOUNS = tuple(_parse_noun(kind, line) for kind, table in _TABLES.items() for line in table.strip().splitlines())
