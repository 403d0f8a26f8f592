"""Language codes: ISO 639 codes of two and three letters that name the same language."""

from __future__ import annotations

from functools import lru_cache

# Each language of ISO 639-1, then its other codes: of ISO 639-2 and 639-3, deprecated ones, and the individual language
# that is meant by the code of a macrolanguage (`cmn` by `zh`).
CODES = """
aa-aar ab-abk ae-ave af-afr ak-aka am-amh an-arg ar-ara-arb as-asm av-ava ay-aym az-aze ba-bak be-bel bg-bul bh-bih
bi-bis bm-bam bn-ben bo-bod-tib br-bre bs-bos ca-cat ce-che ch-cha co-cos cr-cre cs-ces-cze cu-chu cv-chv cy-cym-wel
da-dan de-deu-ger dv-div dz-dzo ee-ewe el-ell-gre en-eng eo-epo es-spa et-est-ekk eu-eus-baq fa-fas-per-pes ff-ful
fi-fin fj-fij fo-fao fr-fra-fre fy-fry ga-gle gd-gla gl-glg gn-grn gu-guj gv-glv ha-hau he-heb-iw hi-hin ho-hmo hr-hrv
ht-hat hu-hun hy-hye-arm hz-her ia-ina id-ind-in ie-ile ig-ibo ii-iii ik-ipk io-ido is-isl-ice it-ita iu-iku ja-jpn
jv-jav-jw ka-kat-geo kg-kon ki-kik kj-kua kk-kaz kl-kal km-khm kn-kan ko-kor kr-kau ks-kas ku-kur kv-kom kw-cor ky-kir
la-lat lb-ltz lg-lug li-lim ln-lin lo-lao lt-lit lu-lub lv-lav-lvs mg-mlg mh-mah mi-mri-mao mk-mkd-mac ml-mal mn-mon-khk
mr-mar ms-msa-may-zsm mt-mlt my-mya-bur na-nau nb-nob nd-nde ne-nep-npi ng-ndo nl-nld-dut nn-nno no-nor nr-nbl nv-nav
ny-nya oc-oci oj-oji om-orm or-ori-ory os-oss pa-pan pi-pli pl-pol ps-pus pt-por qu-que rm-roh rn-run ro-ron-rum-mo-mol
ru-rus rw-kin sa-san sc-srd sd-snd se-sme sg-sag sh-hbs si-sin sk-slk-slo sl-slv sm-smo sn-sna so-som sq-sqi-alb sr-srp
ss-ssw st-sot su-sun sv-swe sw-swa-swh ta-tam te-tel tg-tgk th-tha ti-tir tk-tuk tl-tgl tn-tsn to-ton tr-tur ts-tso
tt-tat tw-twi ty-tah ug-uig uk-ukr ur-urd uz-uzb ve-ven vi-vie vo-vol wa-wln wo-wol xh-xho yi-yid-ji yo-yor za-zha
zh-zho-chi-cmn zu-zul
"""
CANONICAL = {code: codes.partition("-")[0] for codes in CODES.split() for code in codes.split("-")}
NORWEGIAN = frozenset({"nb", "nn"})  # two written languages, and `no` names either


@lru_cache(maxsize=1000)
def canonical_code(code: str) -> str:
    """Return a code in small letters with hyphens and the shortest code of its language: `de-at` for `deu_AT`."""
    language, hyphen, rest = code.lower().replace("_", "-").partition("-")
    return CANONICAL.get(language, language) + hyphen + rest


def find_language(code: str) -> str | None:
    """Return the language of a code without script and region; None for what is no code, such as `txt` and `source`.

    A name of two letters counts as a code, one of three only if the language has one of two as well.

    >>> find_language("de-AT"), find_language("ger"), find_language("txt")
    ('de', 'de', None)
    """
    language = canonical_code(code).partition("-")[0]
    return language if language.isalpha() and len(language) == 2 else None


def matches(code: str, wanted: str) -> bool:
    """Whether a file's language is the one that is wanted: `en-US` and `eng` are `en`, `en` is not `en-US`.

    `nb` and `nn` are not `no`, for one file may hold both.
    """
    code, wanted = canonical_code(code), canonical_code(wanted)
    return code == wanted or code.startswith(f"{wanted}-")


def are_different_languages(one: str | None, other: str | None) -> bool:
    """Return True for codes of different languages, such as `en` and `deu`; `en` and `en-US` are one language."""
    languages = {find_language(code) for code in (one, other) if code} - {None}
    return len(languages) == 2 and not ("no" in languages and languages & NORWEGIAN)
