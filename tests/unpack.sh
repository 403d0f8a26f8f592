#!/bin/sh
# unpack.sh PACKAGE FOLDER: download a package of Debian and unpack its files into a folder, without installing it.
set -eu
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
folder=$(realpath "$2")
cd "$download"
apt-get download -qq "$1" 2>/dev/null
dpkg-deb --extract "$1"_*.deb "$folder"
